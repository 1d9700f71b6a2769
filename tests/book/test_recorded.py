import json

import pytest

from d2lpar.book import recorded
from d2lpar.book.recorded import claims_recorded, machine_in_words

CPU, GPU = "2 x cpu", "1 x cpu, 1 x NVIDIA H200"


def file_of(devices, date, *claims, page="book/a"):
    machine = {"devices": devices, "cores": 2}
    pages = {page: {"claims": claims}}
    results = {"machine": machine, "versions": {"jax": "1.2.3"}, "date": date, "pages": pages}
    return json.dumps(results)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    return tmp_path


def test_the_records_of_a_key_are_found_newest_first_and_none_of_no_key(folder):
    old, new, other = ({"key": "a", "n": 1}, {"key": "a", "n": 2}, {"key": "b", "n": 3})
    (folder / "a.json").write_text(file_of(CPU, "2026-01-01", old, other))
    (folder / "b.json").write_text(file_of(GPU, "2026-01-02", new, {"key": ""}, {}))
    assert claims_recorded("a") == (
        ("an H200", True, "1.2.3", new),
        ("a CPU with 2 cores", False, "1.2.3", old),
    )
    assert claims_recorded("b") == (("a CPU with 2 cores", False, "1.2.3", other),)
    assert claims_recorded("") == claims_recorded("unknown") == ()


@pytest.mark.parametrize("page", recorded.ON_CPU_DEVICES)
def test_a_page_on_cpu_devices_is_no_record_of_the_gpu_of_its_machine(folder, page):
    forked, copied = {"key": "fork-speed-up"}, {"key": "gpu-copies-hide"}
    (folder / "a.json").write_text(file_of(GPU, "2026-01-01", forked, copied, page=page))
    assert claims_recorded("fork-speed-up") == (("a CPU with 2 cores", False, "1.2.3", forked),)
    assert claims_recorded("gpu-copies-hide") == (("an H200", True, "1.2.3", copied),)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("8 x cpu, 1 x NVIDIA A100-SXM4-40GB", "an A100-SXM4-40GB"),
        ("1 x cpu, 1 x Tesla T4", "a Tesla T4"),
        ("1 x cpu, 1 x NVIDIA RTX A6000", "an RTX A6000"),
        ("1 x cpu, 1 x NVIDIA L4, 1 x NVIDIA T4", "1 x L4 and 1 x T4"),
    ],
)
def test_a_machine_is_called_by_its_gpus_or_its_cores(devices, words):
    assert machine_in_words(devices, cores=2) == words
