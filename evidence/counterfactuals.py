"""The cause of each claim of the book, and how to take it away: a row for each claim.

A run of a page takes one cause away. Claims with the same cause, such as asynchronous dispatch,
share the run.
"""

from pathlib import Path

from run_notebook import BARRIERS, SYNCHRONOUS, Intervention, claims_of, read

NO_ONE_SUM = Intervention(
    "the one sum (JAX sums where the gradient is made, and then takes the mean of equal sums)",
    {"    check_vma=False,  # Else JAX sums in each layer.\n": ""},
)

NO_SIXTEEN_MESSAGES = Intervention(
    "the sixteen messages (one with all bytes instead)",
    {"time_all_reduce(16, 1_000),": "time_all_reduce(1, 16_000),"},
)

UNMENDED = Intervention(
    "reading ahead, and reading the loss later",
    {
        "append(loss)\n    return parameters, losses": (
            "append(float(loss))\n    return parameters, losses"
        ),
        "fixed_loop(parameters, read_ahead(), 3)": "fixed_loop(parameters, one_by_one(), 3)",
    },
)

CAUSES = {
    # asynchronous-computation
    "loop-leaves-device-idle": Intervention(
        "the wait for the disk", {"        time.sleep(1.5 * step_time)  # The disk.\n": ""}
    ),
    "clock-stops-early": SYNCHRONOUS,
    "asked-before-done": SYNCHRONOUS,
    "nproc-limits-jax": Intervention("the limit", {'{"NPROC": "1"}': "{}"}),
    "who-needs-a-value-waits": SYNCHRONOUS,
    "new-shape-compiles": Intervention(
        "the newness of the shapes", {"range(2000, 2009)": "[2000] * 9"}
    ),
    "callback-in-the-call": Intervention(
        "the callback", {"    jax.debug.callback(lambda value: None, y[0, 0])\n": ""}
    ),
    "error-at-the-barrier": SYNCHRONOUS,
    "wait-all-is-silent": Intervention(
        "waiting for something else than the result",
        {"raises(lambda y: wait_all())": "raises(jax.block_until_ready)"},
    ),
    "three-durations": SYNCHRONOUS,
    "one-call-for-many": Intervention(
        "the one call", {"lambda: one_call(x),": "lambda: thousand_calls(x, False),"}
    ),
    "limit-in-flight": SYNCHRONOUS,
    "host-batches-pile-up": SYNCHRONOUS,
    "window-of-a-few": Intervention(
        "the room for more than one call", {"with_window(enough)": "with_window(1)"}
    ),
    "donation-saves-memory": Intervention("the donation", {"shrink, donate_argnums=0": "shrink"}),
    "buffer-filled-again": Intervention(
        "the next batch", {"        buffer[:] = 2  # The loader reads the next batch.\n": ""}
    ),
    "buffer-spoils-training": Intervention(
        "the one buffer", {"yield buffer.copy() if copy else buffer": "yield batch"}
    ),
    "queue-the-losses": Intervention(
        "the donation", {"jax.jit(train_step, donate_argnums=0)": "jax.jit(train_step)"}
    ),
    "loop-mended": UNMENDED,
    "each-change-keeps-device-busy": UNMENDED,
    # automatic-parallelism
    "sums-in-each-layer-cost": Intervention(
        "the sums in each layer (one sum instead)",
        {"lambda: train_step(*cut),": "lambda: step_with_one_sum(*cut),"},
    ),
    "one-sum-trains-faster": NO_ONE_SUM,
    "one-sum-same-weights": NO_ONE_SUM,
    "one-core-gains-nothing": Intervention("the one core", {"with on_one_core():\n": "if True:\n"}),
    "condition-met-in-each-turn": Intervention(
        "the condition for all devices (a loop for each device instead)",
        {'"by sharding": lambda: roots(': '"by sharding": lambda: roots_by_device('},
    ),
    "fork-speed-up": BARRIERS,
    "chains-overlap": BARRIERS,
    "large-products-do-not-overlap": Intervention(
        "work that takes every core (chains instead)",
        {"return x @ x": "return d2lpar.book.workloads.chain(x[:64, :64], 1000)"},
    ),
    "cpu-and-gpu-overlap": BARRIERS,
    "copies-behind-computing": BARRIERS,
    "gpu-to-cpu-holds-python": Intervention(
        "the other client (a copy to pinned memory instead)",
        {"way.held for way in found[:1]": "way.held for way in found[-1:]"},
    ),
    "gpu-copies-hide": Intervention(
        "asking for a copy before its product is done",
        {"lambda index: product(x))": "lambda index: jax.block_until_ready(product(x)))"},
    ),
    "update-before-backward-ends": BARRIERS,
    "step-by-hand-pays": BARRIERS,
    "step-by-hand-agrees": Intervention(
        "the gradient of the other accelerator",
        {"w2 - rate * (gradient + other_gradient) / 2": "w2 - rate * gradient"},
    ),
    "small-minibatches-do-not-pay": Intervention(
        "the smallness", {"    ways(64), control=": "    ways(512), control="}
    ),
    # measuring-asynchronous-code
    "unwaited-clock": SYNCHRONOUS,
    "dispatch-does-not-grow": SYNCHRONOUS,
    "committed-compiles-anew": Intervention(
        "the array that is not committed",
        {"for_other:\n    loop(work.matrix,": "for_other:\n    loop(committed,"},
    ),
    "equal-work-removed": Intervention(
        "the equality of the products",
        {"sum(x @ x for _ in range(10))": "sum((x - i) @ x for i in range(10))"},
    ),
    "copy-in-the-interval": Intervention(
        "the copy in each call",
        {'a copy in each call": lambda: update(': 'a copy in each call": carried(update, '},
    ),
    "instrument-in-the-interval": Intervention(
        "counting before the clock stops",
        {"        if inside:\n            stop = time.perf_counter()\n": ""},
    ),
    "five-pairs-undecided": Intervention(
        "comparing a function with itself",
        {"version_a  # They are the same.": "jax.jit(lambda x: jnp.tanh(x @ x @ x))"},
    ),
    "drift-fools": Intervention(
        "taking turns",
        {'compare({"A": same, "B": same})': '{"A": measure(same), "B": measure(same)}'},
    ),
    "peeking-finds-winners": Intervention(
        "looking more than once", {"0.95, looks=5": "0.95, looks=1"}
    ),
    "control-sees-one-core": Intervention("the one core", {"with on_one_core():\n": "if True:\n"}),
    "memory-at-the-peak": SYNCHRONOUS,
    "other-memory-breaks-score": Intervention(
        "the second kind of memory", {"(40, aligned=True)": "(40, aligned=False)"}
    ),
    # in-your-own-code
    "watch-finds-the-line": Intervention(
        "reading the loss in each iteration",
        {"targets)\n        mean += (float(loss)": "targets)\n        mean += (loss"},
    ),
    "no-waits-finds-the-line": Intervention(
        "reading the loss in each step", {"total += float(loss)": "total += loss"}
    ),
    "log-later": Intervention(
        "the steps in between",
        {"losses_logged(later),": "losses_logged(lambda log: later(log, lag=0)),"},
    ),
    "read-before-waiting": Intervention(
        "the batches in hand",
        {
            "        ready.extend(islice(batches, 1))  # Reads one, meanwhile.\n"
            "        if stop(loss):\n            break\n": (
                "        if stop(loss):\n            break\n"
                "        ready.extend(islice(batches, 1))\n"
            ),
            "prefetch(map(read, range(steps)), put)": "map(read, range(steps)), put",
        },
    ),
    "scan-small-steps": Intervention(
        "the one call", {"lambda: many_steps(tiny_step, (tiny, tiny), many)": "step_by_step"}
    ),
    "fill-the-last-batch": Intervention(
        "the batch that is shorter", {"shape = 10 * rows + 5,": "shape = 10 * rows,"}
    ),
    "checkpoint-in-a-thread": Intervention(
        "the thread", {"writing = writer.submit(save, on_host, *args": "save(on_host, *args"}
    ),
    "watched-loop-mended": Intervention(
        "reading ahead, and reading the loss later",
        {
            "prefetch(map(read, range(steps)), jax.device_put)": "map(read, range(steps))",
            "with later(add) as add_later:": "with later(add, lag=0) as add_later:",
        },
    ),
    "one-recipe-is-enough": Intervention(
        "a loop that does little else than read",
        {"add_later(number, loss)": "add_later(number, loss), time.sleep(step_time)"},
    ),
    # solutions/asynchronous-computation
    "x1-model": Intervention(
        "going on without a barrier (and more ratios near 1, where that counts most)",
        {
            "ratios = [0.1, 0.3, 1, 3, 10]": "ratios = [0.1, 0.8, 1, 1.2, 10]",
            "lambda: loop(t1, t2, wait=False),": "lambda: loop(t1, t2, wait=True),",
        },
    ),
    "x2-in-time": Intervention(
        "the step ahead", {"None if k is None else k + 1": "None if k is None else 1"}
    ),
    "x3-begun-early": SYNCHRONOUS,
    "x4-second": SYNCHRONOUS,
    "x5-thousand-operations": SYNCHRONOUS,
    "no-operations-in-the-call": SYNCHRONOUS,
    "x6-copy-keeps-batches": SYNCHRONOUS,
    # solutions/automatic-parallelism
    "y1-overtaking": SYNCHRONOUS,
    "y2-vmap": Intervention(
        "a dispatch for each", {"lambda: call_for_each(xs),": "lambda: at_once(stack),"}
    ),
    "y3-copies-arrive": BARRIERS,
    "y4-idle": Intervention(
        "reading the loss of the step that was just asked for", {"        float(loss)\n": ""}
    ),
    "y5-pipeline-speed-up": BARRIERS,
    "y6-loop-for-each": Intervention(
        "the loop for each device", {"my_loop(count_steps, mesh)": "count_all"}
    ),
    # beyond-one-machine
    "each-holds-a-part": Intervention(
        "the second process", {"two = Workers(2)": "two = Workers(1)"}
    ),
    "straggler-holds-all": Intervention("being late", {"time.sleep(late)\n": "pass\n"}),
    "each-message-costs-alpha": NO_SIXTEEN_MESSAGES,
    "few-large-messages": NO_SIXTEEN_MESSAGES,
    "when-a-second-pays": Intervention(
        "cutting the batch (each process computes all of it)",
        {"rows if alone else rows // jax.process_count()": "rows"},
    ),
    "one-message-pays-sooner": Intervention(
        "the one message", {"training, rows, 1)": "training, rows, layers + 2)"}
    ),
    "same-losses": Intervention(
        "rows that no other process makes", {"parts[jax.process_index()]]": "parts[0]]"}
    ),
    "killed-and-restarted": Intervention(
        "the kill", {"os.kill(os.getpid(), signal.SIGKILL)\n": "pass\n"}
    ),
    "hang-names-who-is-missing": Intervention(
        "the minibatch that is missing", {"anew.run(train_on, [4, 3]": "anew.run(train_on, [4, 4]"}
    ),
    "barrier-names-who-is-missing": Intervention(
        "the process that does not come", {"coming=[0, 1]": "coming=[0, 1, 2]"}
    ),
    # solutions/beyond-one-machine
    "v2-one-message": Intervention("the one message", {"in (False, True))": "in (False, False))"}),
    # solutions/measuring-asynchronous-code
    "w1-mended": SYNCHRONOUS,
    "w2-in-turn": Intervention(
        "taking turns", {"with_itself(my_ratio)": "with_itself(one_after_the_other)"}
    ),
    "w3-looks-paid-for": Intervention(
        "what each look costs", {"bound, level=0.99)": "bound, level=0.95)"}
    ),
    # solutions/in-your-own-code
    "z1-one-later": Intervention("the queue of losses", {"if len(pending) > lag:": "if pending:"}),
    "z2-three-readers": Intervention(
        "the other readers", {"ThreadPoolExecutor(readers)": "ThreadPoolExecutor(1)"}
    ),
}


def about_gpus(key: str) -> bool:
    """Say whether only a GPU can test a claim; the key of such a claim contains `gpu`."""
    return "gpu" in key.split("-")


def runs_without(page: Path) -> list[tuple[Intervention, list[str]]]:
    """Return the runs of a page without a cause: the intervention, and the keys of its claims."""
    causes = {key: CAUSES.get(key) for key in claims_of(page)}
    if missing := ", ".join(key for key, cause in causes.items() if not cause):
        raise ValueError(f"{page} has claims without a cause in CAUSES of {__file__}: {missing}.")
    runs: dict[int, tuple[Intervention, list[str]]] = {}
    for key, cause in causes.items():
        runs.setdefault(id(cause), (cause, []))[1].append(key)
    for cause, keys in runs.values():
        try:
            cause.apply_to(read(page))
        except ValueError as error:
            raise ValueError(f"{page}, {', '.join(keys)}: {error}") from error
    return list(runs.values())
