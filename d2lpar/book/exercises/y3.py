"""Exercise Y3: computing on both, and copying."""

from collections.abc import Callable

import jax

from d2lpar._devices import two_devices
from d2lpar.book.exercises.answers import Rejection, call_answer, require_arrays
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, right_results, work


@exercise("Y3")
def check_y3(exchange: Callable) -> Report:
    """Check whether two devices compute while they send each other what they have computed.

    Args:
        exchange: `exchange(make, send, n)` calls `make(device, i)` for each `i` below `n`, which
            dispatches array `i` of device 0 or 1 and returns it, and `send(array)` for each array,
            which copies it to the other device and returns the copy. It returns two lists: the
            copies of the arrays of device 0, and of those of device 1.

    Returns:
        A report.

    Example:
        >>> def exchange(make, send, n):
        ...     made = jax.block_until_ready([[make(device, i) for i in range(n)] for device in (0, 1)])
        ...     return [[send(array) for array in arrays] for arrays in made]
        >>> check_y3(exchange).verdict in ("not yet", "untestable")
        True
    """
    devices = two_devices("cpu+cpu")
    require_asynchrony()
    n = 6
    given = [inputs(n, device, seed) for seed, device in enumerate(devices)]
    right = [right_results(n, device, seed) for seed, device in enumerate(devices)]
    log = CallLog()
    names = ("make(0, i)", "make(1, i)")
    making = [log.watch(name, work) for name in names]

    def make(device, i):
        if device not in (0, 1) or i not in range(n):
            raise Rejection(
                f"make({device!r}, {i!r}) was called; the devices are 0 and 1, and i is 0 to "
                f"{n - 1}.",
                "The first argument is the device, the second the number of the array.",
            )
        return making[device](given[device][i])

    def send(array):
        if not isinstance(array, jax.Array):
            raise Rejection(
                f"send() was given {type(array).__name__}, not an array of JAX.",
                "Send what make() returned, as it is.",
            )
        return jax.device_put(array, devices[1] if array.devices() == {devices[0]} else devices[0])

    case = (make, log.watch("send()", send), n)
    (found,) = call_answer(exchange, [case], "my_exchange(make, send, n)")
    for device in (0, 1):
        log.require_count(names[device], n)
    log.require_count("send()", 2 * n)
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise Rejection(
            f"Your function returned {type(found).__name__}, not two lists.",
            "Return the copies of the arrays of device 0, and those of device 1.",
        )
    for device in (0, 1):
        require_arrays(found[device], right[device], f"copies of the arrays of device {device}")
        if any(copy.devices() != {devices[1 - device]} for copy in found[device]):
            raise Rejection(
                f"Not all copies of the arrays of device {device} lie on the other device.",
                "Return what send() returned, not what it was given.",
            )
    makes = [call for call in log.calls if call.label != "send()"]
    together = sum(call.found_busy(names[call.label == names[0]]) for call in makes)
    if together < n / 2:
        raise Rejection(
            f"{together} of {len(makes)} arrays were asked for while the other device was "
            "computing: the devices take turns.",
            "Where does Python stand still before it has given work to both?",
        )
    sends = log.of("send()")
    meanwhile = sum(all(map(call.found_busy, names)) for call in sends)
    if meanwhile < n / 2:
        raise Rejection(
            "Both devices compute at the same time, but "
            f"{meanwhile} of {len(sends)} copies were asked for while both were still computing.",
            "Does an array have to be ready before you may send it?",
        )
    later = [call for call in makes if call.number > 0]
    supplied = sum(call.found_busy(call.label) for call in later)
    if supplied <= len(later) / 2:
        raise Rejection(
            f"Only {supplied} of {len(later)} later arrays were asked for while their own device "
            "was still busy with the one before: each device rests until its copy is there.",
            "For which array does Python wait before it asks for the next?",
        )
    return (
        f"{together} of {len(makes)} arrays were asked for while the other device was computing, "
        f"and {meanwhile} of {len(sends)} copies while both were."
    )
