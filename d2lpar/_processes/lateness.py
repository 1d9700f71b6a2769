"""Say which of several processes was late, and at which line, from what `watch` saw of each.

How it works. A collective operation, such as an all-reduce, ends when all processes have reached
it. So a punctual process spends the time for which it waits inside it, and the late one spends
least there. The difference is how long the others waited, and the report of the late one says what
it was doing. No clocks of two machines are compared. Processes that are late in turn all wait
alike, and cannot be told from those that are never late.
"""

import statistics
from collections.abc import Iterator, Mapping

from d2lpar._watch.report import Finding, Watched

_WAITS = "Share of the time in collective operations, such as an all-reduce"
_LATE = 0.05
"""The share of the time that others have to wait before a process is called late."""


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
    most = max(others.values())
    each = ", ".join(f"process {number} {wait:.0%}" for number, wait in sorted(waits.items()))
    if most < _LATE:
        yield f"No process was late more than the others. {_WAITS}: {each}."
        return
    who = f"process {min(others)} waited for it for"
    if len(others) > 1:
        who = "the others waited for it, for up to"
    yield f"Process {late} was late: {who} {most:.0%} of the time."
    yield f"{_WAITS}: {each}."
    found = list(_own_losses(reports[late], [reports[number] for number in others]))
    for finding, lost, usual in found[:3]:
        yield (
            f"At {finding.place}  {finding.place.code}  its device was idle for {lost:.0%} of the "
            f"time, the others' for {usual:.0%}."
        )
    if sum(lost - usual for _, lost, usual in found) < 0.5 * most:
        what = "These lines do not explain most of it" if found else "No line of it explains that"
        yield f"{what}: its device probably has more to do, or is slower."


def _own_losses(late: Watched, punctual: list[Watched]) -> Iterator[tuple[Finding, float, float]]:
    """Yield lines at which one process loses more of the time than the others, and both shares."""
    for finding in late.losses():
        usual = statistics.median(
            sum(one.loss(other) for other in one.findings if other.place == finding.place)
            for one in punctual
        )
        if late.loss(finding) - usual > 0.2 * _LATE:
            yield finding, late.loss(finding), usual
