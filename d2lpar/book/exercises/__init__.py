"""Check a reader's answer by its behavior, and say where to look.

The text of an exercise gives the arguments of its answer, and the behavior that it has to show.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "asynchronous_computation": [
            "check_x1",
            "check_x2",
            "check_x3",
            "check_x4",
            "check_x5",
            "check_x6",
        ],
        "automatic_parallelism": [
            "check_y1",
            "check_y2",
            "check_y3",
            "check_y4",
            "check_y5",
            "check_y6",
        ],
        "beyond_one_machine": ["check_v1", "check_v2", "check_v3"],
        "checking": ["MIME_TYPE", "Report"],
        "in_your_own_code": ["check_z1", "check_z2", "check_z3"],
        "measuring_asynchronous_code": ["check_w1", "check_w2", "check_w3"],
    },
)
