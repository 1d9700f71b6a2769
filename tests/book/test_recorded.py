import pytest

from d2lpar.book import recorded
from d2lpar.book.claims import Claim
from d2lpar.book.recorded import claims_recorded, machine_in_words

CPU, GPU = "2 x cpu", "1 x cpu, 1 x NVIDIA H200"


def claim(sentence, key):
    return Claim(sentence, needs="a GPU", key=key)


@pytest.mark.parametrize("page", recorded.ON_CPU_DEVICES)
def test_a_page_on_cpu_devices_is_no_record_of_the_gpu_of_its_machine(record, page):
    record(GPU, claim("It forks.", "fork"), claim("It copies.", "gpu-copies"), page=page)
    ((machine, has_gpu, *_),) = claims_recorded("fork")
    assert (machine, has_gpu) == ("a CPU with 2 cores", False)
    ((machine, has_gpu, *_),) = claims_recorded("gpu-copies")
    assert (machine, has_gpu) == ("an H200", True)


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
