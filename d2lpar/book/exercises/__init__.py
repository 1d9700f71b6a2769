"""Check a reader's answer by its behavior, and say where to look.

The text of an exercise gives the arguments of its answer, and the behavior that it has to show.
"""

import lazy_loader


def _checks(letter: str, count: int) -> list[str]:
    return [f"check_{letter}{number + 1}" for number in range(count)]


__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "asynchronous_computation": _checks("x", 7),
        "automatic_parallelism": _checks("y", 6),
        "beyond_one_machine": _checks("v", 5),
        "checking": ["MIME_TYPE", "Report"],
        "in_your_own_code": [*_checks("z", 3), "check_own_script"],
        "measuring_asynchronous_code": _checks("w", 3),
    },
)
