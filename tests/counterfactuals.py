"""What makes each claim of the book true, and how to take it away.

A claim is named by the beginning of its sentence; `tests/test_check_claims.py` sees that each has
one.
"""

from pathlib import Path

from run_notebook import BARRIERS, ROOT, SYNCHRONOUS, Intervention, claimed_by

CAUSES = {
    "asynchronous-computation": {
        "Without a barrier, the clock stops": SYNCHRONOUS,
        "Neither of the two arrays waits": Intervention(
            "the independence of the two arrays",
            edits={"    y = jnp.ones(shape)\n": "    y = x + 1\n"},
        ),
        "Python has asked for everything": SYNCHRONOUS,
        "With nothing else in the queue": Intervention(
            "the otherwise empty queue",
            edits={
                "(chain(matrix, length), wait_all())[0]": (
                    "(chain(matrix, length), chain(matrix, 3 * length), wait_all())[0]"
                )
            },
        ),
        "Neither `effects_barrier` nor": SYNCHRONOUS,
        "On one device, a short call": Intervention(
            "the one queue (another thread, and another queue, for the short call)",
            edits={
                "        short_one = chain(matrix, 1)  # It needs nothing of the long one.": (
                    "        from concurrent.futures import ThreadPoolExecutor\n"
                    "        other = ThreadPoolExecutor(1)\n"
                    "        short_one = other.submit(chain, matrix, 1).result()"
                )
            },
        ),
        "Each of these that has to see": SYNCHRONOUS,
        "Somewhere in the middle": SYNCHRONOUS,
        "On a CPU, the result of a call over two": Intervention(
            "running inside the call (XLA counts more operations)",
            edits={
                "    return x + 1\n": (
                    "    return x + 1 + 0 * chain(jnp.full((64, 64), x.sum()), 50)[0, 0]\n"
                )
            },
        ),
        "On a CPU, a program in which XLA counts": SYNCHRONOUS,
        "JAX lets Python run ahead": SYNCHRONOUS,
        "As long as the limit is not reached": SYNCHRONOUS,
        "Without a barrier, batches from the host": SYNCHRONOUS,
        "Batches that are made on the device": Intervention(
            "making them on the device",
            edits={
                "return device_batch(batch_keys[step], *template.shape)": "return from_host(step)"
            },
        ),
        "With a window of three": Intervention(
            "the room for more than one step",
            edits={
                "dict(make_batch=from_host, max_in_flight=3)": (
                    "dict(make_batch=from_host, max_in_flight=1)"
                )
            },
        ),
    },
    "automatic-parallelism": {
        "With a free core for each device, the fork": BARRIERS,
        "In the median, it does not beat": Intervention(
            "waiting for the result",
            edits={
                '"two devices": lambda: fork_and_join(matrix, other),': (
                    '"two devices": lambda: (fork_and_join(matrix, other), None)[1],'
                )
            },
        ),
        "Two devices with a free core": BARRIERS,
        "On a CPU, large products": Intervention(
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
        "A CPU and a GPU, or two GPUs": BARRIERS,
        "Without the barrier, the first device": BARRIERS,
        "From a GPU, `device_put` to the CPU": Intervention(
            "the other client (a copy to pinned memory instead)",
            edits={"    return jax.device_put(array, cpu())\n": "    return pin(array)\n"},
        ),
        "On a GPU, `copy_to_host_async`": Intervention(
            "asking for a copy before all products are done",
            edits={
                "for array in map(make, range(count))])": (
                    "for array in block([make(index) for index in range(count)])])"
                )
            },
        ),
        "Trained by hand on two": BARRIERS,
        "After five steps by hand": Intervention(
            "the gradient of the other accelerator",
            edits={"rate * (gradient + other_gradient)": "rate * 2 * gradient"},
        ),
        "The compiler has inserted": Intervention(
            "splitting the batch",
            edits={'PartitionSpec("data")': "PartitionSpec()"},
        ),
    },
    "measuring-asynchronous-code": {
        "The clock that does not wait": SYNCHRONOUS,
        "A `jax.jit` of a new `lambda`": Intervention(
            "making it anew in each turn",
            edits={
                "        layer = jax.jit(lambda x: jnp.tanh(x @ x / side))\n": "",
            },
        ),
        "The same function has two programs": Intervention(
            "the array that is not committed",
            edits={"for_other:\n    loop(matrix,": "for_other:\n    loop(committed,"},
        ),
        "Warmed up with the array": SYNCHRONOUS,
        "Ten equal products become one": Intervention(
            "the equality of the products",
            edits={
                "sum(x @ x for _ in range(10))": "sum((x - i) @ x for i in range(10))",
            },
        ),
        "Per call, handing out sixteen": SYNCHRONOUS,
        "Five pairs do not even decide": Intervention(
            "comparing a function with itself",
            edits={
                "version_b = version_a  # They are the same.": (
                    "version_b = jax.jit(lambda x: jnp.tanh(x @ x @ x))"
                )
            },
        ),
        "One after the other, the function": Intervention(
            "taking turns",
            edits={
                'compare({"A": same, "B": same})': '{"A": measure(same), "B": measure(same)}',
            },
        ),
        "Read after the barrier": SYNCHRONOUS,
        "With memory of another kind": Intervention(
            "the second kind of memory",
            edits={"host_array(64, aligned=True)": "host_array(64, aligned=False)"},
        ),
    },
    "solutions/asynchronous-computation": {
        "The given condition is too weak": Intervention(
            "the weak condition",
            edits={"        if turns * t2 > (turns - 1):\n": "        if t2 >= 1:\n"},
        ),
        "For each of these ratios": Intervention(
            "going on without a barrier (and more ratios near 1, where that counts most)",
            edits={
                "ratios = [0.1, 0.3, 1, 3, 10]": "ratios = [0.1, 0.4, 0.7, 1, 1.4, 2.5, 10]",
                '"without": lambda: loop(t1, length, False),': (
                    '"without": lambda: loop(t1, length, True),'
                ),
            },
        ),
        "There are never more steps": SYNCHRONOUS,
        "One step ahead, more than half": Intervention(
            "the step ahead",
            edits={"limit = None if k is None else k + 1 ": "limit = None if k is None else 1 "},
        ),
        "Without a barrier, one device begins": SYNCHRONOUS,
        "On one device, waiting for the second": SYNCHRONOUS,
        "On a CPU, the line lies": SYNCHRONOUS,
    },
    "solutions/automatic-parallelism": {
        "A short chain that another thread": SYNCHRONOUS,
        "XLA looks for common": Intervention(
            "the equality of the products",
            edits={"[matrices[0] @ matrices[0] for _ in range(10)]": "[m @ m for m in matrices]"},
        ),
        "On the smallest matrices": Intervention(
            "a dispatch for each",
            edits={
                '"a call for each": lambda: call_for_each(xs),': (
                    '"a call for each": lambda: all_at_once(stack),'
                )
            },
        ),
        "When nobody waits": BARRIERS,
        "In the mended loop": BARRIERS,
        "Diamond and pipeline": Intervention(
            "what the other device has computed",
            edits={
                "    return join(b, jax.device_put(c, one))": (
                    "    return join(b, c if device == one else b)"
                )
            },
        ),
        "With a free core for each device, the pipeline": BARRIERS,
        "In the median, neither beats": Intervention(
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
