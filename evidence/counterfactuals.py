"""The cause of each claim of the book, and how to take it away: a row for each claim.

A run of a page takes one cause away. Claims with the same cause, such as asynchronous dispatch,
share the run.
"""

from pathlib import Path

from run_notebook import BARRIERS, SYNCHRONOUS, Intervention, claims_of, read

NO_ONE_SUM = Intervention(
    "the one sum (JAX sums where the gradient is made, and then takes the mean of equal sums)",
    {"    check_vma=False,  # Or each layer is summed already.\n": ""},
)

NO_SIXTEEN_MESSAGES = Intervention(
    "the sixteen messages (one with all bytes instead)",
    {'"64 kB in sixteen": all_reduce(16, 1_000)': '"64 kB in sixteen": all_reduce(1, 16_000)'},
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
        {
            "        seconds.append(time.perf_counter() - start)\n": "",
            "if counting:": "seconds.append(time.perf_counter() - start)\n        if counting:",
        },
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
        "the thread",
        {"writing = writer.submit(save, on_host, *args": "save(on_host, *args"},
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


IN_SHORT = {
    "loop-leaves-device-idle": "An ordinary loop leaves its device idle",
    "clock-stops-early": "Without a barrier the clock stops early",
    "asked-before-done": "Python is done long before the device",
    "nproc-limits-jax": "`NPROC` limits the threads of JAX, `OMP_NUM_THREADS` does not",
    "who-needs-a-value-waits": "What has to see a value waits, and nothing else",
    "new-shape-compiles": "A new shape holds Python until it is compiled",
    "callback-in-the-call": "A program with a callback is computed inside the call",
    "wait-all-is-silent": "`wait_all` does not tell of a failed call",
    "error-at-the-barrier": "An error is raised at the barrier",
    "three-durations": "Three durations predict the time of a loop",
    "one-call-for-many": "One call with `scan` instead of a thousand",
    "limit-in-flight": "A CPU takes 32 calls in flight, then Python is held",
    "host-batches-pile-up": "Minibatches from the host pile up without a bound",
    "window-of-a-few": "A window of one is too small, one by the rule is not",
    "donation-saves-memory": "Donating the old array saves its memory",
    "buffer-filled-again": "A queued program reads a buffer that is filled again",
    "buffer-spoils-training": "One buffer for all batches spoils the losses without a barrier",
    "queue-the-losses": "Donated parameters cannot be waited for, losses can",
    "each-change-keeps-device-busy": "Each change to the loop keeps the device busier",
    "loop-mended": "The fixed loop learns faster, with the same losses",
    "sums-in-each-layer-cost": "A sum in each layer takes longer than one sum in a step",
    "one-sum-trains-faster": "With a single sum, two devices train faster than one",
    "one-sum-same-weights": "Split or not, a step gives the same weights",
    "one-core-gains-nothing": "On one core, two devices gain next to nothing",
    "small-minibatches-do-not-pay": "With small minibatches two devices do not pay",
    "condition-met-in-each-turn": "Sharded, a loop with a condition synchronizes in each turn",
    "fork-speed-up": "Two devices run the fork faster than one",
    "chains-overlap": "Chains on two devices overlap",
    "large-products-do-not-overlap": "Large products on two CPU devices hardly overlap",
    "cpu-and-gpu-overlap": "A CPU and a GPU compute at once",
    "copies-behind-computing": "Copies arrive while the device still computes",
    "gpu-to-cpu-holds-python": "`device_put` from a GPU to the CPU holds Python",
    "gpu-copies-hide": "Copies from a GPU to pinned memory hide behind computing",
    "update-before-backward-ends": "Weights are updated before the backward pass ends",
    "step-by-hand-pays": "A step by hand on two devices is faster than on one",
    "step-by-hand-agrees": "The step by hand gives the weights of one device",
    "each-holds-a-part": "Each process holds its part of an array",
    "straggler-holds-all": "One process that is late holds all",
    "each-message-costs-alpha": "Each message costs a latency",
    "few-large-messages": "One large message instead of sixteen is faster",
    "when-a-second-pays": "A second process pays for large minibatches only",
    "one-message-pays-sooner": "One message for all gradients beats one for each layer",
    "same-losses": "One process and two have the same losses",
    "killed-and-restarted": "A training that was killed goes on as if undisturbed",
    "hang-names-who-is-missing": "The report of a hang names the process that is missing",
    "barrier-names-who-is-missing": "The error of a barrier names the process that is missing",
    "watch-finds-the-line": "`watch` finds the lines at which Python waits",
    "log-later": "Logging a loss two steps later is faster",
    "read-before-waiting": "Reading before it waits makes a loop faster",
    "scan-small-steps": "Many tiny steps in one call are faster",
    "fill-the-last-batch": "Filling up the last batch makes evaluation faster",
    "checkpoint-in-a-thread": "Checkpoints written in a thread hold a loop up less",
    "no-waits-finds-the-line": "`no_waits` finds each read of a loop, and nothing else",
    "watched-loop-mended": "Two recipes make a watched loop faster",
    "one-recipe-is-enough": "For that loop the recipe `later` alone does nearly all",
    "unwaited-clock": "A clock that does not wait sees hardly any of the time",
    "committed-compiles-anew": "A committed array makes JAX compile once more",
    "copy-in-the-interval": "A copy in each call looks like a slower step",
    "equal-work-removed": "The compiler removes equal work and work that is not used",
    "instrument-in-the-interval": "A counter inside the interval is measured too",
    "five-pairs-undecided": "Five pairs are too few to find a winner",
    "drift-fools": "One after the other, a function is slower than itself",
    "peeking-finds-winners": "Looking five times finds winners among equals",
    "control-sees-one-core": "The control drops each round that had one core only",
    "memory-at-the-peak": "Memory differs at the peak, and not at the end",
    "other-memory-breaks-score": "A second kind of memory breaks an overlap score",
    "x1-model": "X1: A formula gives the time of a loop without barriers",
    "x2-in-time": "X2: One step ahead is in time, in little memory",
    "x3-begun-early": "X3: Without a barrier, a device begins early",
    "x4-second": "X4: Waiting for the second of ten does not wait for all",
    "x5-thousand-operations": "X5: From a thousand operations on, a program is queued",
    "no-operations-in-the-call": "A program of one operation runs inside the call",
    "x6-copy-keeps-batches": "X6: A copy keeps a batch that JAX reads later",
    "y1-overtaking": "Y1: Only a call of another thread overtakes",
    "y2-vmap": "Y2: `vmap` pays for small matrices most",
    "y3-copies-arrive": "Y3: Copies arrive while both devices compute",
    "y4-idle": "Y4: A loop that reads each loss leaves its device idle",
    "y5-pipeline-speed-up": "Y5: Two devices run a pipeline faster than one",
    "y6-loop-for-each": "Y6: A loop for each device spares an all-reduce a turn",
    "v2-one-message": "V2: One message for sixteen gradients is faster",
    "w1-mended": "W1: The mended benchmark sees all of the time",
    "w2-in-turn": "W2: Taken in turn, a function is about as fast as itself",
    "w3-looks-paid-for": "W3: With looks paid for, equals have few winners",
    "z1-one-later": "Z1: Reading one step later is enough",
    "z2-three-readers": "Z2: Three readers make a loop faster than one",
}
"""Each claim in a few words, for the page with the evidence."""


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
