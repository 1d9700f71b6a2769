"""The checks of W1 to W3: right answers, and wrong ones that a reader may well give."""

import math
import time
from statistics import mean, median

import jax
import jax.numpy as jnp
import numpy as np
from attempts import both_tests

from d2lpar import Quantity, compare, measure
from d2lpar._plain.cores import Control
from d2lpar.book.exercises import check_w1, check_w2, check_w3

RIGHT, WRONG = {}, {}


def seconds(function, clock):
    start = clock()
    function()
    return clock() - start


def benchmark(
    warm_up=lambda step, x: step(x).block_until_ready(), wait=jax.block_until_ready, count=40
):

    def my_seconds(step, x, clock):
        def loop():
            for _ in range(count):
                y = step(x)
            wait(y)

        warm_up(step, x)
        return seconds(loop, clock) / count

    return my_seconds


def barrier_in_each(step, x, clock):
    times = [seconds(lambda: step(x).block_until_ready(), clock) for _ in range(9)]
    return median(times)  # The first call compiles, but does not move the median.


def each_after_the_other(step, x, clock):
    y = step(x).block_until_ready()
    start = clock()
    for _ in range(20):
        y = step(y)
    while not y.is_ready():
        pass
    return (clock() - start) / 20


def under_jit(step, x, clock):
    ten = jax.jit(lambda x: [step(x) for _ in range(10)])
    return seconds(lambda: jax.block_until_ready(ten(x)), clock) / 10


def with_more_readings(wait):
    def my_seconds(step, x, clock):
        per_call = benchmark(wait=wait, count=4000)(step, x, clock)
        for y in (x, step(x)):
            clock()
            jax.block_until_ready(y)
        return per_call

    return my_seconds


RIGHT[check_w1] = {
    "a call and a reading afterwards": with_more_readings(jax.block_until_ready),
    "one barrier": benchmark(),
    "one call": benchmark(count=1),
    "a copy to the host": benchmark(wait=np.asarray),
    "a value": benchmark(wait=lambda y: float(y[0, 0])),
    "a barrier in each": barrier_in_each,
    "each needs the one before": each_after_the_other,
    "measure": lambda step, x, clock: measure(step, x, clock=clock).total.median,
}
WRONG[check_w1] = {
    "no barrier": (benchmark(wait=id), "32 of 41 calls were unfinished"),
    # The mean over very many is near enough, by chance: the queue is short beside them.
    "no barrier, many calls": (benchmark(wait=id, count=5000), "32 of 5001 calls were unfinished"),
    "a barrier afterwards": (with_more_readings(id), "32 of 4001 calls were unfinished"),
    "no warm-up": (
        benchmark(warm_up=lambda step, x: None),
        "step of 5 ms: it was compiled.*\n.*When is a jitted",
    ),
    "another array": (
        benchmark(warm_up=lambda step, x: step(jnp.ones(x.shape)).block_until_ready()),
        "for an array of another kind",
    ),
    "warms up without a barrier": (
        benchmark(warm_up=lambda step, x: [step(x) for _ in range(8)]),
        "says 6 ms for a step of 5 ms: when the clock started, the device was busy",
    ),
    "its own clock": (
        lambda step, x, clock: benchmark(count=1)(step, x, time.perf_counter),
        "The clock was read 0 times",
    ),
    "one number for all": (
        lambda step, x, clock: (benchmark()(step, x, clock), 0.005)[1],
        "says 5 ms for a step of 500 µs",
    ),
    "times nothing": (
        lambda step, x, clock: seconds(step(x).block_until_ready().block_until_ready, clock),
        "was not called between",
    ),
    "under jit": (under_jit, "while JAX was tracing"),
    "a number": (lambda step, x, clock: step(3.0), "which is not an array"),
}


def comparison(summary=median, rounds=9, every=2, ask="after", counts=bool):
    """Return a comparison in turn that sums up the ratios of the rounds that count."""

    def my_ratio(a, b, clock, cores_free):
        a(), b()
        ratios, taken = [], 0
        while len(ratios) < rounds:
            free = ask != "before" or cores_free()
            pair = [b, a] if taken % every == 1 else [a, b]
            times = {function: seconds(function, clock) for function in pair}
            taken += 1
            if ask == "after":
                free = cores_free()
            if counts(free):
                ratios.append(times[b] / times[a])
        return summary(ratios)

    return my_ratio


def by_compare(a, b, clock, cores_free):
    control = Control(lambda: 0.0 if cores_free() else 2.0, 1.0, "two free cores")
    times = compare({"a": a, "b": b}, repeats=60, clock=clock, control=control)
    return times.ratio("b", "a").median


def waits_for_its_turn(a, b, clock, cores_free):
    def wait():
        while not cores_free():
            pass
        return True

    return comparison()(a, b, clock, wait)


def one_after_the_other(a, b, clock, cores_free):
    of_b, of_a = ([seconds(function, clock) for _ in range(9)] for function in (b, a))
    return median(of_b) / median(of_a)


def asks_while_the_clock_runs(a, b, clock, cores_free):
    def asking(function):
        return lambda: (function(), cores_free())

    return median(seconds(asking(b), clock) / seconds(asking(a), clock) for _ in range(9))


def low_ones(ratios):
    return median(ratio for ratio in ratios if ratio < 1.5 * sorted(ratios)[5])


def polls_at_the_end(a, b, clock, cores_free):
    ratio = comparison(low_ones, rounds=40, ask="never")(a, b, clock, cores_free)
    while sum(cores_free() for _ in range(99)) < 9:
        pass
    return ratio


RIGHT[check_w2] = {
    "in turn, asking after": comparison(),
    "in turn, asking before": comparison(ask="before"),
    "many rounds": comparison(rounds=51),
    "waits for its turn": waits_for_its_turn,
    "compare": by_compare,
}
WRONG[check_w2] = {
    "one after the other": (one_after_the_other, "timed all calls of one before"),
    "the mean": (comparison(summary=mean), "does not depend on how far off a single one"),
    "the best": (comparison(summary=min), "does not depend on how far off a single one"),
    "never asks": (comparison(ask="never"), "never called cores_free"),
    "never asks, often": (comparison(ask="never", rounds=500), "never called cores_free"),
    "asks and goes on": (comparison(counts=lambda free: True), "leave out the rounds in which"),
    "counts the others": (comparison(counts=lambda free: not free), "times without ending"),
    "few rounds": (comparison(rounds=1), "rests on 1 round"),
    "lucky rounds": (
        comparison(low_ones, rounds=40, counts=lambda free: True),
        "leave out the rounds in which",
    ),
    "polls at the end": (polls_at_the_end, "rests on 1 round"),
    "always a first": (comparison(every=1), "in 9 of 9 rounds, a came first"),
    "nearly always": (comparison(every=8), "in 8 of 9 rounds, a came first"),
    "asks while the clock runs": (asks_while_the_clock_runs, "called while the clock ran"),
    "its own clock": (
        lambda a, b, clock, free: comparison(rounds=1)(a, b, time.perf_counter, free),
        "between two readings of the clock",
    ),
    "nothing": (lambda a, b, clock, cores_free: 1.0, r"a\(\) was never called"),
}


def verdict(samples, bound, level):
    return (Quantity("time", samples, level=level) < bound).verdict


def by_counting(samples, bound, level, sides=2):
    n, above = len(samples), sum(sample >= bound for sample in samples)

    def clear(count):
        return sum(math.comb(n, k) for k in range(count + 1)) / 2**n <= (1 - level) / sides

    return "holds" if clear(above) else "fails" if clear(n - above) else "inconclusive"


def by_the_mean(samples, bound, level):
    width = (2.58 if level > 0.95 else 1.96) * np.std(samples) / len(samples) ** 0.5
    low, high = np.mean(samples) - width, np.mean(samples) + width
    return "holds" if high < bound else "fails" if low > bound else "inconclusive"


def decision(level=0.99, looks=(9, 18, 36, 72, 144)):
    """Return a decision that looks after these numbers of samples, at the same level each time."""

    def my_decision(more, bound):
        samples = []
        for look in looks:
            samples += more(look - len(samples))
            if (word := by_counting(samples, bound, level)) != "inconclusive":
                return word
        return "inconclusive"

    return my_decision


def until_it_is_clear(more, bound):
    samples = more(9)
    while (word := by_counting(samples, bound, 0.95)) == "inconclusive":
        samples += more(len(samples))
    return word


RIGHT[check_w3] = {
    "a quantity": (verdict, decision()),
    "by counting": (by_counting, decision()),
    "three looks": (verdict, decision(level=1 - 0.05 / 3, looks=(9, 36, 144))),
}
WRONG[check_w3] = {
    "the median alone": (
        (lambda s, bound, level: "holds" if median(s) < bound else "fails", decision()),
        "Of 9 samples 4 lie at the bound or above.*says 'holds'",
    ),
    "the mean": ((by_the_mean, decision()), "Of 9 samples 9 lie at"),
    "below, if it equals the bound": (
        (lambda s, bound, level: by_counting(np.nextafter(s, 0), bound, level), decision()),
        "Of 9 samples 8 lie at",
    ),
    "one level for all": (
        (lambda s, bound, level: verdict(s, bound, 0.95), decision()),
        "Of 9 samples 1 lies at the bound or above; at 99%",
    ),
    "one end only": (
        (lambda s, bound, level: by_counting(s, bound, level, sides=1), decision()),
        "Of 36 samples 12 lie at",
    ),
    "the other way round": (
        (lambda s, bound, level: verdict([-x for x in s], -bound, level), decision()),
        "The claim is that the median lies below",
    ),
    "true and false": (
        (lambda s, bound, level: median(s) < bound, decision()),
        "Your my_verdict returned",
    ),
    "until it is clear": ((verdict, until_it_is_clear), "has taken 144 samples, and asked for 144"),
    "six looks": (
        (verdict, decision(level=0.996, looks=(9, 18, 27, 36, 72, 144))),
        "has taken samples 5 times, and asked for more",
    ),
    "five looks at 95%": ((verdict, decision(level=0.95)), "In 1.. of 1000 comparisons of equals"),
    "one look at the end": (
        (verdict, decision(level=0.95, looks=(144,))),
        "took 144 before it said 'holds'",
    ),
    "one look at the start": ((verdict, decision(looks=(9,))), "says 'inconclusive' after 9"),
    "asks for none": ((verdict, lambda more, bound: more(0)), "asked for 0 samples"),
    "a number": ((verdict, lambda more, bound: median(more(9))), "Your my_decision returned"),
}


test_right_answers_are_accepted, test_wrong_answers_are_told_why = both_tests(RIGHT, WRONG)
