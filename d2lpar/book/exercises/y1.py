"""Exercise Y1: one device, many calls."""

from collections.abc import Callable

from d2lpar._devices import cpu, device_name
from d2lpar._trace import record_trace
from d2lpar.book.exercises.answers import Rejection, call_answer, require_arrays
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, Untestable, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, right_results, work


@exercise("Y1")
def check_y1(products: Callable) -> Report:
    """Check whether independent calls on one device ran at the same time.

    Args:
        products: `products(multiply, matrices)` calls `multiply(matrix)` for each of the matrices,
            all of which are on one CPU device, and returns the results in their order.

    Returns:
        A report.

    Example:
        >>> check_y1(lambda multiply, matrices: [multiply(m) for m in matrices]).verdict
        'not yet'
    """
    require_asynchrony()
    device = cpu()
    matrices = inputs(6, device)
    right = right_results(6, device)
    log = CallLog()
    # The argument is called as the exercise calls it, for readers who name it.
    multiply = log.watch("multiply()", lambda matrix: work(matrix))
    usage = "my_products(multiply, matrices)"
    # The first call compiles whatever else it uses.
    (found,) = call_answer(products, [(multiply, list(matrices))], usage)
    require_arrays(found, right, "a result for each matrix")
    log.calls.clear()
    case = (products, multiply, list(matrices))
    ((found, timeline),) = call_answer(record_trace, [case], usage)
    require_arrays(found, right, "a result for each matrix")
    log.require_count("multiply()", len(matrices))
    for call in log.calls:
        if call.result.devices() != {device}:
            raise Rejection(
                f"Product {call.number} ran on {call.where}, but all are to run on "
                f"{device_name(device)}, where the matrices are.",
                "With two devices it is easy. Can one do it as well?",
            )
    runs = [e for e in timeline.programs.row(device_name(device)) if e.program == work.__name__]
    if not runs:
        raise Untestable("JAX's profiler shows no run of multiply() here.")
    end, overlapping = 0, 0
    for run in runs:
        overlapping += run.start < end
        end = max(end, run.end)
    if overlapping:
        return (
            f"Of {len(runs)} runs on {device_name(device)}, {overlapping} began while another was "
            "under way."
        )
    if not any(call.unfinished for call in log.calls):
        raise Rejection(
            "Each product was asked for when the one before it was done, so they ran one after "
            "the other.",
            "What in your function waits before it asks for the next?",
        )
    threads = len({call.thread for call in log.calls})
    raise Rejection(
        f"The products were asked for without waiting, by {threads} Python "
        f"thread{'s' * (threads > 1)}, and yet the timeline shows their runs on "
        f"{device_name(device)} one after the other.",
        "A queue works in order. Whose queue is it: the device's, whoever asks, or somebody "
        "else's as well?",
    )
