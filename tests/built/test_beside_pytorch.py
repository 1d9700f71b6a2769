"""PyTorch beside JAX: the programs, what they have measured, and what the page says of it.

PyTorch is not here; of its program only the names are compared.
"""

import importlib
import json
from statistics import median
from types import SimpleNamespace

import beside_pytorch
import jax
import numpy as np
import peer_jax
import peers
import pytest
from run_notebook import ROOT

PROGRAMS = {
    name: (ROOT / "evidence" / f"peer_{name.removeprefix('Py').lower()}.py").read_text()
    for name in ("PyTorch", "JAX")
}
FOUND = {
    machine: json.loads((ROOT / "evidence" / f"{machine}.json").read_text())["seconds"]
    for machine in ("h200", "two-cores", "two-xeon-cores")
}
PAGE = " ".join((ROOT / "book" / "beside-pytorch.md").read_text().split())


def middle(machine, framework, name):
    return median(FOUND[machine][framework][name])


# --- The programs -----------------------------------------------------------------------------


def test_a_time_reaches_to_the_end_of_the_wait_and_leaves_the_first_run_out(clock):
    lasts = iter([100, 3, 1, 2])
    handed_out, ready = peers.seconds(
        lambda: clock.advance(next(lasts)), lambda _: clock.advance(10), most=3, clock=clock
    )
    assert (handed_out, ready) == (2, 12)


def test_what_takes_long_is_timed_three_times_and_what_is_short_as_often_as_allowed(clock):
    runs = []

    def run(seconds):
        runs.append(clock.advance(seconds))

    peers.seconds(lambda: run(5), peers.go_on, clock=clock)
    assert len(runs) == 1 + 3
    peers.seconds(lambda: run(0.001), peers.go_on, most=7, clock=clock)
    assert len(runs) == 1 + 3 + 1 + 7


def test_of_ten_products_it_is_also_said_how_long_handing_out_takes():
    work = {"ten random products of 1": lambda: 1, "something else": lambda: 2}
    found = peers.medians(work, peers.go_on)
    assert [*found] == [
        "ten random products of 1",
        "ten random products of 1, handed out",
        "something else",
    ]


def test_the_frameworks_take_turns_and_the_numbers_of_all_processes_are_kept():
    order = []

    def run(program):
        order.append(program)
        return {"version": "1", "seconds": {"work": len(order) / 3}}

    answers, medians = beside_pytorch.in_turn({"PyTorch": "t", "JAX": "j"}, run, rounds=2)
    assert order == ["t", "j", "t", "j"]
    assert medians == {"PyTorch": {"work": [0.3333, 1.0]}, "JAX": {"work": [0.6667, 1.333]}}
    assert answers["JAX"]["version"] == "1"


def test_jax_does_the_same_call_by_call_and_in_one_call():
    work = peer_jax.on_one_device(steps=2)
    for name in work:
        if name.startswith("a thousand increments"):
            np.testing.assert_array_equal(work[name](), [[1001, 1001]])
    in_steps, at_once = work["training"](), work["training, scan"]()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), in_steps, at_once)


def test_what_takes_a_gpu_runs_with_the_cpu_in_its_place():
    cpu = jax.devices("cpu")[0]
    work = peer_jax.beside_a_gpu(cpu, cpu, small=2, large=3, copied=4, count=5)
    del work["ten random products of 4000"]  # It takes seconds here.
    for name, run in work.items():
        assert jax.tree.leaves(run()), name
    kinds = {y.sharding.memory_kind for y in work["each copy behind its product"]()}
    assert kinds == {"pinned_host"}


# --- The files and the page -------------------------------------------------------------------


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    return importlib.import_module("d2lpar_peers")


def test_each_row_of_the_page_is_measured_by_both_programs(page):
    for rows in page.GROUPS.values():
        for _, *names in rows:
            assert f'"{names[0]}"' in PROGRAMS["PyTorch"]
            assert f'"{names[-1]}"' in PROGRAMS["JAX"]


@pytest.mark.parametrize("machine", FOUND)
@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_files_have_three_times_of_what_the_programs_measure(machine, framework):
    for name, times in FOUND[machine][framework].items():
        assert f'"{name.removesuffix(", handed out")}"' in PROGRAMS[framework]
        assert len(times) == 3
        assert min(times) > 0


@pytest.fixture
def app(page, tmp_path, monkeypatch):
    """A build with two machines, on the second of which one of two rows was measured."""
    monkeypatch.setattr(page, "GROUPS", {"Work": [("quick", "a")], "Copies": [("slow", "b")]})
    (tmp_path / "evidence").mkdir()
    for stem, work in {
        "h200": {"a": [1, 2, 3], "b": [2, 2, 2]},
        "two-cores": {"a": [4, 4, 4]},
        "two-xeon-cores": {},
    }.items():
        found = {
            "machine": stem,
            "date": "2026-11-26",
            "versions": {"JAX": "0.1"},
            "training steps": 5,
            "seconds": {"PyTorch": work, "JAX": {name: [1, 1, 1] for name in work}},
        }
        (tmp_path / "evidence" / f"{stem}.json").write_text(json.dumps(found))
    images = SimpleNamespace(add_file=lambda *_: None)
    return SimpleNamespace(srcdir=tmp_path, env=SimpleNamespace(images=images))


def test_a_table_has_the_groups_of_which_a_machine_has_run_something(page, app):
    said, table = page.table(app, "book/beside-pytorch", "two-cores")
    assert said.astext() == "two-cores; JAX 0.1; 2026-11-26; 5 steps of training."
    head, group, row = ([entry.astext() for entry in row] for row in table.findall(page.nodes.row))
    assert (len(head), group, row[0], row[-1]) == (4, ["Work"], "quick", "4.0")


def test_the_figure_says_its_ratios_to_whoever_does_not_see_it(page, app):
    (figure,) = page.figure(app, "book/beside-pytorch", "")
    said = next(figure.findall(page.nodes.image))["alt"]
    assert said == (
        "Ratios of times, PyTorch to JAX: quick 2 on H200; quick 4 on two EPYC cores; "
        "slow 2 on H200"
    )
    assert (app.srcdir / "_build" / "figures" / "ratios.svg").exists()


def test_the_text_says_a_time_of_the_file(page, app):
    (said,) = page.time(app, "book/beside-pytorch", "two-cores PyTorch a")
    assert said.astext() == "4 s"


def test_a_ratio_is_that_of_the_medians_and_there_is_none_without_both(page):
    found = {"seconds": {"PyTorch": {"a": [1, 9, 2]}, "JAX": {"a": [4, 3, 5], "b": [1, 1, 1]}}}
    assert page.ratio(found, ["a"]) == (0.5, [0.25, 3, 0.4])
    assert page.ratio(found, ["b"]) is None
    assert page.cells_of(found, "words", "a")[-1] == "0.50"
    times = page.spread([1, 9, 2]), page.spread([1, 1, 1])
    assert page.cells_of(found, "words", "a", "b")[1:3] == times
    assert page.cells_of(found, "words", "c") is None


def test_times_have_one_unit_and_three_digits(page):
    assert page.spread([0.0111, 0.012, 0.0095]) == f"11.1\xa0ms (9.50{page.TO}12.0)"
    assert page.spread([4.4e-4, 4.5e-4, 1.1e-3]) == f"450\xa0\N{MICRO SIGN}s (440{page.TO}1100)"


def test_the_page_says_of_the_h200_what_was_measured_there():
    def ms(framework, name):
        return 1e3 * middle("h200", framework, name)

    def each(framework):  # In microseconds, of a thousand.
        times = FOUND["h200"][framework]["a thousand increments, call by call"]
        return f"{1e3 * min(times):.0f} to {1e3 * max(times):.0f} µs"

    def factor(slow, fast, digits=1):
        return f"{ms(*slow) / ms(*fast):.{digits}f}"

    def drawing(framework):  # What ten random products take beyond ten of fifty products.
        computing = ms(framework, "fifty products") / 5
        return f"{ms(framework, 'ten random products of 4000') - computing:.1f} ms for"

    def score(framework):
        alone = ms(framework, "fifty products"), ms(framework, "copying them to pinned memory")
        return (sum(alone) - ms(framework, early)) / min(alone)

    barrier, training = "training, a barrier in each step", "training"
    pinned, pageable = (f"copying them to {kind} memory" for kind in ("pinned", "pageable"))
    late, early = "fifty products, then fifty copies", "each copy behind its product"
    unrolled = "a thousand increments, scan with unroll=50"
    said = [
        f"a call of PyTorch took {each('PyTorch')}, and a call of a jitted function {each('JAX')}",
        f"without Python in between: {ms('PyTorch', 'a thousand increments, CUDA graph'):.0f} ms.",
        f"A `scan` of JAX took {ms('JAX', 'a thousand increments, scan'):.0f} ms",
        f"With `unroll=50` it took {ms('JAX', unrolled):.1f} ms, a third of the graph",
        "JAX takes "
        + factor(("JAX", "ten random products of 4000"), ("PyTorch", "ten random products of 4000"))
        + " times as long",
        f"{drawing('JAX')} JAX",
        f"{ms('PyTorch', pinned):.0f} ms in PyTorch and {ms('JAX', pinned):.0f} ms in JAX, into "
        f"pageable memory {factor(('PyTorch', pageable), ('PyTorch', pinned), 0)} and "
        f"{factor(('JAX', pageable), ('JAX', pinned), 0)} times as long.",
        f"{ms('PyTorch', late):.0f} ms in PyTorch and {ms('JAX', late):.0f} ms in JAX. With",
        f"it is {ms('PyTorch', early):.0f} ms in both",
        f"and took {ms('PyTorch', 'copying them with non_blocking=True'):.0f} ms",
        f"the [overlap score](automatic-parallelism.md#a-number-for-overlap) is {score('JAX'):.2f}",
        f"took PyTorch {ms('PyTorch', training) / 1e3:.1f} s and JAX "
        f"{ms('JAX', training) / 1e3:.2f} s",
        f"PyTorch's Python {ms('PyTorch', training) / 150:.1f} ms to ask",
        f"the GPU needs {ms('JAX', 'training, scan') / 150:.1f} ms for a step",
        f"a factor of {factor(('JAX', barrier), ('JAX', training))}, and PyTorch "
        f"{factor(('PyTorch', barrier), ('PyTorch', training))}:",
        f"PyTorch took {ms('PyTorch', 'training, torch.compile') / 1e3:.2f} s.",
    ]
    assert [phrase for phrase in said if phrase not in PAGE] == []
    assert f"and {drawing('PyTorch').removesuffix(' for')} for PyTorch" in PAGE
    assert round(score("PyTorch"), 2) == round(score("JAX"), 2)
    assert round(ms("JAX", early)) == round(ms("PyTorch", early))
    assert 2.5 < float(factor(("PyTorch", "a thousand increments, CUDA graph"), ("JAX", unrolled)))
    level = "ten products of 6000 on the GPU"
    assert float(factor(("PyTorch", level), ("JAX", level), 2)) == pytest.approx(1, abs=0.02)


def test_what_the_page_says_of_the_cpus_was_measured_there():
    def ratio(name, machine="two-cores"):
        return middle(machine, "PyTorch", name) / middle(machine, "JAX", name)

    def jax_takes(name):
        return middle("two-cores", "JAX", name)

    assert ratio("a thousand increments, call by call") < 0.85
    assert ratio("one draw of 1000 x 1000") == pytest.approx(1, abs=0.15)
    assert ratio("one product of 1000") == pytest.approx(2, abs=0.2)
    assert ratio("training") == pytest.approx(2, abs=0.2)
    assert f"{1 / ratio('ten random products of 1000', 'two-xeon-cores'):.1f}" == "1.4"
    assert "PyTorch is ahead in the ten random products, by a factor of 1.4." in PAGE
    assert ratio("training", "two-xeon-cores") == pytest.approx(1, abs=0.15)
    assert jax_takes("a thousand increments, scan") < 1e-4
    handed_out = jax_takes("ten random products of 1000, handed out")
    assert handed_out < 0.1 * jax_takes("ten random products of 1000")
    for framework in PROGRAMS:
        with_barriers, without = (
            middle("two-cores", framework, name)
            for name in ("training, a barrier in each step", "training")
        )
        assert 0.8 < with_barriers / without < 1.25
