"""Say which of several processes was late, and at which line, from what `watch` saw of each.

How it works. What processes do together, such as an all-reduce, ends when all have come to it. So
the device of one that is punctual is in that operator for as long as it waits for the others, and
the one that is late spends the least time there. By how much more the others do is the time for
which they waited for it, and where that one was meanwhile is in its own report. No clock of one
machine is compared with that of another.
"""

import os
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from d2lpar._watched import Finding, Watched

_LATE = 0.05
"""The share of the time that others have to wait before a process is called late."""

# As JAX finds out, and where it cannot. A batch script of Slurm has a number, but is in no step.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)


def process_number() -> int | None:
    """Return which of the processes this is that a launcher has started; None if it is alone."""
    for number, count in _LAUNCHERS:
        if int(os.environ.get(count, 1)) > 1 and number in os.environ:
            return int(os.environ[number])
    return None


def of_process(path: Path, number: int) -> Path:
    """Return the file of one process, where `path` is asked for.

    Example:
        >>> of_process(Path("runs/report.json"), 3).as_posix()
        'runs/report.3.json'
    """
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def compared(reports: Mapping[int, Watched]) -> str:
    """Return which process was late, and at which of its lines; then the report of each.

    Args:
        reports: What was seen of each process, by its number.
    """
    each = (f"--- Process {number}\n{watched}" for number, watched in sorted(reports.items()))
    return "\n\n".join(["\n".join(_late(reports)), *each])


def _late(reports: Mapping[int, Watched]) -> Iterator[str]:
    waits = {
        number: watched.collective_seconds / watched.judged_seconds
        for number, watched in reports.items()
    }
    if len(reports) < 2:
        yield "Nobody can be late: there is the report of one process."
        return
    if not any(waits.values()):
        yield "Who was late is not known: nothing was seen that the processes do together."
        return
    late = min(waits, key=waits.get)
    others = {number: wait - waits[late] for number, wait in waits.items() if number != late}
    each = ", ".join(f"{number} for {wait:.0%}" for number, wait in sorted(waits.items()))
    if max(others.values()) < _LATE:
        yield (
            f"No process was late: all were about as long in what they do together ({each} of "
            "the time)."
        )
        return
    yield (
        f"Process {late} was late, and the others waited for it: for {max(others.values()):.0%} of "
        f"the time. (In what they do together were {each}.)"
    )
    punctual = [reports[number] for number in others]
    found = list(_own_losses(reports[late], punctual))
    for finding, more in found[:3]:
        yield (
            f"Its device was idle for {more:.0%} more of the time than theirs while it was at "
            f"{finding.place}  {finding.place.code}"
        )
    if sum(more for _, more in found) < 0.5 * max(others.values()):
        yield "Its device also takes longer for its own part: it has more to do, or is slower."


def _own_losses(late: Watched, punctual: list[Watched]) -> Iterator[tuple[Finding, float]]:
    """Yield the lines at which one process loses more of the time than the others there."""
    for finding in late.losses():
        usual = statistics.median(
            sum(one.loss(other) for other in one.findings if other.place == finding.place)
            for one in punctual
        )
        if (more := late.loss(finding) - usual) > 0.2 * _LATE:
            yield finding, more
