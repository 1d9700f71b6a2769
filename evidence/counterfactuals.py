"""What makes each claim of the book true, and how to take it away, by the keys of the claims."""

from collections.abc import Collection
from pathlib import Path

from run_notebook import (
    BARRIERS,
    SYNCHRONOUS,
    Intervention,
    claims_of,
    keep_what_is_needed,
    name_of,
    read,
)

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
            edits={"train(from_host, max_in_flight=3)": "train(from_host, max_in_flight=1)"},
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
                "    return x @ x\n": "    return chain(x[:64, :64], 1000)\n",
                # Chains overlap only while two cores are free.
                "until=lambda times: overlap(times) < 2 / 3\n": (
                    "until=lambda times: overlap(times) < 2 / 3, control=free_cores(2)\n"
                ),
                'only one",\n    needs=needs_two_devices,': (
                    'only one",\n    needs=needs_two_devices or product_times.missing,'
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
                "    for index in range(count):\n        array = make(index)\n": (
                    "    for array in block([make(index) for index in range(count)]):\n"
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
        "peeking-finds-winners": Intervention(
            "looking more than once",
            edits={"shares(0.95, looks=5)": "shares(0.95, looks=1)"},
        ),
        "alpha-spent-in-parts": Intervention(
            "the smaller error of each look",
            edits={"shares(0.99, looks=5)": "shares(0.95, looks=5)"},
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
                "ratios = [0.1, 0.3, 1, 3, 10]": "ratios = [0.1, 0.8, 1, 1.2, 10]",
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


def about_gpus(key: str) -> bool:
    """Say whether only a GPU can test a claim, which is then said in its key."""
    return "gpu" in key.split("-")


def cause_of(page: Path) -> dict[str, Intervention]:
    """Return what takes the cause of each claim of a page away, by key, in the order of the page.

    Raises:
        ValueError: If a claim has no cause here, or a cause no claim.
    """
    causes, claims = CAUSES.get(name_of(page), {}), claims_of(page)
    if missing := ", ".join(key for key in claims if key not in causes):
        raise ValueError(f"{page} claims what has no cause in CAUSES of {__file__}: {missing}.")
    if left := ", ".join(key for key in causes if key not in claims):
        raise ValueError(f"CAUSES of {__file__} names what {page} does not claim: {left}.")
    return {key: causes[key] for key in claims}


def runs_without(
    page: Path, keys: Collection[str] | None = None
) -> list[tuple[Intervention, list[str]]]:
    """Return the runs that take the causes of claims of a page away, with the claims of each.

    One run may take several causes away, but never changes a cell that another of its claims
    needs, unless that claim asks for the same: each is tested as if it were alone.
    """
    causes = cause_of(page)
    touched = {key: _touched(page, key, cause) for key, cause in causes.items()}
    runs: list[list[str]] = []
    for key in causes if keys is None else keys:
        for run in runs:
            alike = causes[run[0]].first == causes[key].first
            if alike and not any(_disturb(touched[key], touched[other]) for other in run):
                run.append(key)
                break
        else:
            runs.append([key])
    return [(_together([causes[key] for key in run]), run) for run in runs]


def _touched(page: Path, key: str, cause: Intervention) -> tuple[list[str], dict[str, str]]:
    """Return the cells that a claim needs, and what takes its cause away from them."""
    notebook = read(page)
    keep_what_is_needed(notebook, keys=[key])
    return [cell.source for cell in notebook.cells], dict(cause.edits)


def _disturb(*pair: tuple[list[str], dict[str, str]]) -> bool:
    """Say whether one of two claims has an edit that the cells of the other would notice."""
    return any(
        old in cell and edits.get(old) != new
        for (cells, edits), (_, others) in (pair, reversed(pair))
        for old, new in others.items()
        for cell in cells
    )


def _together(causes: list[Intervention]) -> Intervention:
    edits = {old: new for cause in causes for old, new in cause.edits.items()}
    names = dict.fromkeys(cause.takes_away for cause in causes)
    return Intervention(", ".join(names), causes[0].first, edits)
