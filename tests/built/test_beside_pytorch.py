"""PyTorch beside JAX: the programs, and the page with their measurements.

PyTorch is not installed here, so only the names in its program are compared.
"""

import beside_pytorch
import d2lpar_peers as page
import jax
import numpy as np
import peer_jax
import peers
import pytest
from run_notebook import ROOT


def test_a_time_reaches_to_the_end_of_the_wait_and_leaves_the_first_run_out(clock):
    lasts = iter([100, 3, 1, 2])
    dispatch, total = peers.seconds(
        lambda: clock.advance(next(lasts)), lambda _: clock.advance(10), most=3, clock=clock
    )
    assert (dispatch, total) == (2, 12)


@pytest.mark.parametrize(("seconds", "runs"), [(5, 1 + 3), (0.001, 1 + 7)])
def test_long_work_is_timed_three_times_and_short_work_as_often_as_allowed(clock, seconds, runs):
    ran = []
    peers.seconds(lambda: ran.append(clock.advance(seconds)), peers.go_on, most=7, clock=clock)
    assert len(ran) == runs


def test_the_frameworks_take_turns_and_the_numbers_of_all_processes_are_kept():
    order = []

    def run(program):
        order.append(program)
        return {"version": "1", "seconds": {"work": len(order) / 3}}

    reports, medians = beside_pytorch.in_turn({"PyTorch": "t", "JAX": "j"}, run, rounds=2)
    assert order == ["t", "j", "t", "j"]
    assert medians == {"PyTorch": {"work": [0.3333, 1.0]}, "JAX": {"work": [0.6667, 1.333]}}
    assert reports["JAX"]["version"] == "1"


def test_jax_does_the_same_call_by_call_and_in_one_call():
    work = peer_jax.on_one_device(steps=2)
    for name in work:
        if name.startswith("a thousand increments"):
            np.testing.assert_array_equal(work[name](), [[1001, 1001]])
    in_steps, at_once = work["training"](), work["training, scan"]()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), in_steps, at_once)


def test_the_work_for_a_gpu_runs_with_the_cpu_in_its_place():
    cpu = jax.devices("cpu")[0]
    work = peer_jax.beside_a_gpu(cpu, cpu, small=2, large=3, copied=4, count=5)
    del work["ten random products of 4000"]  # It takes seconds here.
    for name, run in work.items():
        assert jax.tree.leaves(run()), name
    kinds = {y.sharding.memory_kind for y in work["each copy behind its product"]()}
    assert kinds == {"pinned_host"}


def test_each_row_of_the_page_is_measured_by_both_programs():
    torch, jax = ((ROOT / "evidence" / f"peer_{name}.py").read_text() for name in ("torch", "jax"))
    for rows in page.GROUPS.values():
        for _, *names in rows:
            assert f'"{names[0]}"' in torch
            assert f'"{names[-1]}"' in jax


def test_a_row_has_times_in_one_unit_with_their_range_and_the_ratio_of_medians():
    # 0.1435 s is 143.5 ms, but 0.1435 / 1e-3 is less.
    torch, jax = {"work": [0.1435, 0.15, 0.095]}, {"graph": [4e-4, 4.4e-4, 1.1e-3]}
    data = {"seconds": {"PyTorch": torch, "JAX": jax}}
    to, none = "\N{EN DASH}\N{WORD JOINER}", "\N{EN DASH}"
    work, graph = f"144\xa0ms (95.0{to}150)", f"440\xa0\N{MICRO SIGN}s (400{to}1100)"
    assert page.cells_of(data, "Both", "work", "graph") == ("Both", work, graph, "326")
    assert page.cells_of(data, "One", "work") == ("One", work, none, none)
