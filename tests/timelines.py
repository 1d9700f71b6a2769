"""Timelines and traces made by hand, in nanoseconds."""

import jax

from d2lpar import Event, Timeline


def event(row, start, end, program="f", operator="op", run=0):
    return Event(row, program, operator, run, start, end - start)


def timeline(*events, watched=()):
    return Timeline(tuple(sorted(events, key=lambda event: event.start)), frozenset(watched))


def spans(events):
    return [(event.program, event.start, event.end) for event in events]


def serialized(planes):
    """Return a trace: {plane: {line: [(event, start, end, {statistic: value})]}}, in ns."""
    return jax.profiler.ProfileData.text_proto_to_serialized_xspace(
        "".join(plane_text(name, lines) for name, lines in planes.items())
    )


def plane_text(plane, lines):
    events, statistics = {}, {}

    def number(of, name):
        return of.setdefault(name, len(of) + 1)

    def value(of):
        return f'str_value: "{of}"' if isinstance(of, str) else f"int64_value: {of}"

    text = f'planes {{ name: "{plane}"\n'
    for line, members in lines.items():
        text += f'lines {{ name: "{line}" timestamp_ns: 1000\n'
        for name, start, end, stats in members:
            text += f"events {{ metadata_id: {number(events, name)} "
            text += f"offset_ps: {start * 1000} duration_ps: {(end - start) * 1000}\n"
            for stat, of in stats.items():
                text += f"stats {{ metadata_id: {number(statistics, stat)} {value(of)} }}\n"
            text += "}\n"
        text += "}\n"
    for kind, named in (("event", events), ("stat", statistics)):
        for name, key in named.items():
            text += f'{kind}_metadata {{ key: {key} value {{ id: {key} name: "{name}" }} }}\n'
    return text + "}\n"


def on_gpu(program, operator, start, end):
    return operator, start, end, {"hlo_module": f"jit_{program}", "hlo_op": operator}


def on_cpu(device, program, operator, start, end, run_id=7):
    stats = {"device_ordinal": device, "run_id": run_id}
    return operator, start, end, stats | {"hlo_module": f"jit_{program}", "hlo_op": operator}


COMPUTE, TO_HOST, FROM_HOST = (
    f"Stream #{number}({kind})"
    for number, kind in ((13, "Compute"), (14, "MemcpyD2H"), (15, "MemcpyH2D"))
)
