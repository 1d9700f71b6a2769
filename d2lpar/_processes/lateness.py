"""Find the process that was late, and the lines that made it late, in the reports of all.

How it works. A collective operation, such as an all-reduce, ends when all processes have reached
it. A punctual process therefore waits inside the operation, and the late process spends least time
there. The difference is how long the others waited, and the late process's own report says what it
was doing meanwhile. No clocks of two machines are compared. If the processes are late in turn, all
of them wait alike, as if none were late.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from d2lpar._jax.stack import Place
from d2lpar._watch.report import Watched

_LATE = 0.05  # Share of the time that others have to wait until a process is called late.
_OWN_LINE = 0.01  # A line explains lateness if it loses that much more than elsewhere.


def compared(reports: Mapping[int, Watched]) -> str:
    """Return which process was late and where, a table of all processes, and each one's report."""
    waits = {n: w.collective_seconds / w.judged_seconds for n, w in sorted(reports.items())}
    table = ["Share of the time  in collective operations  device idle at its lines"]
    for number, share in waits.items():
        idle = sum(map(reports[number].loss, reports[number].findings))
        table.append(f"process {number:<9}  {share:>24.0%}  {idle:>24.0%}")
    each = [f"--- Process {number}\n{reports[number]}" for number in waits]
    return "\n\n".join([_verdict(reports, waits), "\n".join(table), *each])


def _verdict(reports: Mapping[int, Watched], waits: Mapping[int, float]) -> str:
    if len(reports) < 2:
        return "No process can be called late: there is only one report."
    if not any(waits.values()):
        return "It is unknown which process was late: no collective operation was seen."
    late = min(waits, key=waits.get)
    others = [number for number in waits if number != late]
    waited = max(waits.values()) - waits[late]
    if waited < _LATE:
        return "No process was much later than the others."
    who = f"process {others[0]} waited for it for"
    if len(others) > 1:
        who = "the others waited for it, for up to"
    lines = _own_lines(reports[late], [reports[number] for number in others])
    verdict = [f"Process {late} was late: {who} {waited:.0%} of the time."]
    if lines:
        verdict.append("Its device was idle at:")
    verdict += [f"    {place}  {place.code}" for place in list(lines)[:3]]
    if sum(lines.values()) < 0.5 * waited:
        verdict.append(
            "Its lines do not explain most of that: its device probably has more to do, or is "
            "slower."
        )
    return "\n".join(verdict)


def _own_lines(late: Watched, others: Sequence[Watched]) -> dict[Place, float]:
    """Return the lines that cost the late process more than the others, and the differences."""
    lost: Counter[Place] = Counter()
    for finding in late.findings:
        lost[finding.place] += late.loss(finding)
    for place in lost:
        lost[place] -= statistics.median(
            sum(other.loss(f) for f in other.findings if f.place == place) for other in others
        )
    return {place: share for place, share in lost.most_common() if share > _OWN_LINE}
