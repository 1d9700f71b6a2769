"""What makes each claim of the book true, and how to take it away.

A claim is named by the beginning of its sentence; `tests/test_check_claims.py` sees that each has
one.
"""

from pathlib import Path

from run_notebook import BARRIERS, ROOT, SYNCHRONOUS, Intervention, claimed_by

CAUSES = {
    "asynchronous-computation": {
        "clock-stops-early": SYNCHRONOUS,
        "inputs-are-independent": Intervention(
            "the independence of the two arrays",
            edits={"    y = jnp.ones(shape)\n": "    y = x + 1\n"},
        ),
        "asked-before-done": SYNCHRONOUS,
        "blockers-wait-alike": Intervention(
            "the otherwise empty queue",
            edits={
                "(chain(matrix, length), wait_all())[0]": (
                    "(chain(matrix, length), chain(matrix, 3 * length), wait_all())[0]"
                )
            },
        ),
        "only-wait-all-waits": SYNCHRONOUS,
        "queue-in-order": Intervention(
            "the one queue (another thread, and another queue, for the short call)",
            edits={
                "        short_one = chain(matrix, 1)  # It needs nothing of the long one.": (
                    "        from concurrent.futures import ThreadPoolExecutor\n"
                    "        other = ThreadPoolExecutor(1)\n"
                    "        short_one = other.submit(chain, matrix, 1).result()"
                )
            },
        ),
        "who-needs-a-value-waits": SYNCHRONOUS,
        "barrier-costs-a-quarter": SYNCHRONOUS,
        "tiny-runs-in-the-call": Intervention(
            "running inside the call (XLA counts more operations)",
            edits={
                "    return x + 1\n": (
                    "    return x + 1 + 0 * chain(jnp.full((64, 64), x.sum()), 50)[0, 0]\n"
                )
            },
        ),
        "no-operations-in-the-call": SYNCHRONOUS,
        "limit-in-flight": SYNCHRONOUS,
        "handed-out-sooner": SYNCHRONOUS,
        "host-batches-pile-up": SYNCHRONOUS,
        "device-batches-do-not": Intervention(
            "making them on the device",
            edits={
                "return device_batch(batch_keys[step], *template.shape)": "return from_host(step)"
            },
        ),
        "window-keeps-busy": Intervention(
            "the room for more than one step",
            edits={
                "dict(make_batch=from_host, max_in_flight=3)": (
                    "dict(make_batch=from_host, max_in_flight=1)"
                )
            },
        ),
    },
    "automatic-parallelism": {
        "fork-speed-up": BARRIERS,
        "fork-bound": Intervention(
            "waiting for the result",
            edits={
                '"two devices": lambda: fork_and_join(matrix, other),': (
                    '"two devices": lambda: (fork_and_join(matrix, other), None)[1],'
                )
            },
        ),
        "chains-overlap": BARRIERS,
        "large-products-do-not-overlap": Intervention(
            "work that takes every core (chains instead)",
            edits={
                "    return x @ x\n": "    return chain(x[:64, :64], 4000)\n",
                # Chains overlap only while two cores are free.
                "    product_score < 2 / 3,\n": (
                    "    product_score.where(free_rounds(product_times)[0]) < 2 / 3,\n"
                ),
                'can use",\n    needs="two CPU devices" if one == other else None,': (
                    'can use",\n    needs=free_rounds(product_times)[1],'
                ),
            },
        ),
        "cpu-and-gpu-overlap": BARRIERS,
        "copies-behind-computing": BARRIERS,
        "gpu-to-cpu-holds-python": Intervention(
            "the other client (a copy to pinned memory instead)",
            edits={"    return jax.device_put(array, cpu())\n": "    return pin(array)\n"},
        ),
        "gpu-copies-hide": Intervention(
            "asking for a copy before all products are done",
            edits={
                "for array in map(make, range(count))])": (
                    "for array in block([make(index) for index in range(count)])])"
                )
            },
        ),
        "training-overlaps": BARRIERS,
        "training-by-hand-agrees": Intervention(
            "the gradient of the other accelerator",
            edits={"rate * (gradient + other_gradient)": "rate * 2 * gradient"},
        ),
        "all-reduce-inserted": Intervention(
            "splitting the batch",
            edits={'PartitionSpec("data")': "PartitionSpec()"},
        ),
    },
    "measuring-asynchronous-code": {
        "unwaited-clock": SYNCHRONOUS,
        "new-lambda-compiles": Intervention(
            "making it anew in each turn",
            edits={
                "        layer = jax.jit(lambda x: jnp.tanh(x @ x / side))\n": "",
            },
        ),
        "committed-compiles-anew": Intervention(
            "the array that is not committed",
            edits={"for_other:\n    loop(matrix,": "for_other:\n    loop(committed,"},
        ),
        "warmed-up-alike": SYNCHRONOUS,
        "equal-work-removed": Intervention(
            "the equality of the products",
            edits={
                "sum(x @ x for _ in range(10))": "sum((x - i) @ x for i in range(10))",
            },
        ),
        "queue-fills": SYNCHRONOUS,
        "five-pairs-undecided": Intervention(
            "comparing a function with itself",
            edits={
                "version_b = version_a  # They are the same.": (
                    "version_b = jax.jit(lambda x: jnp.tanh(x @ x @ x))"
                )
            },
        ),
        "drift-fools": Intervention(
            "taking turns",
            edits={
                'compare({"A": same, "B": same})': '{"A": measure(same), "B": measure(same)}',
            },
        ),
        "memory-at-the-peak": SYNCHRONOUS,
        "other-memory-breaks-score": Intervention(
            "the second kind of memory",
            edits={"host_array(64, aligned=True)": "host_array(64, aligned=False)"},
        ),
    },
    "solutions/asynchronous-computation": {
        "x1-condition": Intervention(
            "the weak condition",
            edits={"        if turns * t2 > (turns - 1):\n": "        if t2 >= 1:\n"},
        ),
        "x1-model": Intervention(
            "going on without a barrier (and more ratios near 1, where that counts most)",
            edits={
                "ratios = [0.1, 0.3, 1, 3, 10]": "ratios = [0.1, 0.4, 0.7, 1, 1.4, 2.5, 10]",
                '"without": lambda: loop(t1, length, False),': (
                    '"without": lambda: loop(t1, length, True),'
                ),
            },
        ),
        "x2-memory": SYNCHRONOUS,
        "x2-in-time": Intervention(
            "the step ahead",
            edits={"limit = None if k is None else k + 1 ": "limit = None if k is None else 1 "},
        ),
        "x3-begun-early": SYNCHRONOUS,
        "x4-second": SYNCHRONOUS,
        "x5-thousand-operations": SYNCHRONOUS,
    },
    "solutions/automatic-parallelism": {
        "y1-overtaking": SYNCHRONOUS,
        "y1-common-subexpressions": Intervention(
            "the equality of the products",
            edits={"[matrices[0] @ matrices[0] for _ in range(10)]": "[m @ m for m in matrices]"},
        ),
        "y2-vmap": Intervention(
            "a dispatch for each",
            edits={
                '"a call for each": lambda: call_for_each(xs),': (
                    '"a call for each": lambda: all_at_once(stack),'
                )
            },
        ),
        "y3-copies-arrive": BARRIERS,
        "y4-idle": BARRIERS,
        "y5-same-results": Intervention(
            "what the other device has computed",
            edits={
                "    return join(b, jax.device_put(c, one))": (
                    "    return join(b, c if device == one else b)"
                )
            },
        ),
        "y5-pipeline-speed-up": BARRIERS,
        "y5-bounds": Intervention(
            "waiting for the result",
            edits={
                '"pipeline": lambda: two_stages(batches),': (
                    '"pipeline": lambda: (two_stages(batches), None)[1],'
                )
            },
        ),
    },
}


def cause_of(page: Path) -> dict[str, Intervention]:
    """Return what takes the cause of each claim of a notebook away, by its whole sentence."""
    causes = CAUSES[page.relative_to(ROOT / "book").with_suffix("").as_posix()]
    sentences = claimed_by(page)
    found = {}
    for beginning, intervention in causes.items():
        (sentence,) = (s for s in sentences if s.startswith(beginning))
        found[sentence] = intervention
    if missing := [sentence for sentence in sentences if sentence not in found]:
        raise ValueError(f"{page} claims what has no cause in {__file__}: {missing}")
    return found


def runs_without(page: Path, *, gpus: bool = True) -> list[tuple[Intervention, list[str]]]:
    """Return the runs that take every cause of a notebook away, with the claims of each.

    What only edits cells happens in one run, since each edit concerns one claim. Claims about GPUs
    can be left out: without one, their cells cost minutes only to say so.
    """
    runs: dict[str, list[str]] = {}
    edits: dict[str, str] = {}
    for sentence, intervention in cause_of(page).items():
        if "GPU" in sentence and not gpus:
            continue
        runs.setdefault(intervention.first, []).append(sentence)
        edits |= intervention.edits
    return [
        (Intervention("", first, {} if first else edits), sentences)
        for first, sentences in runs.items()
    ]
