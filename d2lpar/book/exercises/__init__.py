"""Check a reader's answer by its behavior, and say where to look.

The text of an exercise gives the arguments of its answer, and the behavior that it has to show.
"""

from d2lpar.book.exercises.asynchronous_computation import (
    check_x1 as check_x1,
    check_x2 as check_x2,
    check_x3 as check_x3,
    check_x4 as check_x4,
    check_x5 as check_x5,
)
from d2lpar.book.exercises.automatic_parallelism import (
    check_y1 as check_y1,
    check_y2 as check_y2,
    check_y3 as check_y3,
    check_y4 as check_y4,
    check_y5 as check_y5,
)
from d2lpar.book.exercises.beyond_one_machine import (
    check_v1 as check_v1,
    check_v2 as check_v2,
    check_v3 as check_v3,
)
from d2lpar.book.exercises.checking import MIME_TYPE as MIME_TYPE, Report as Report
from d2lpar.book.exercises.in_your_own_code import (
    check_z1 as check_z1,
    check_z2 as check_z2,
    check_z3 as check_z3,
)
from d2lpar.book.exercises.measuring_asynchronous_code import (
    check_w1 as check_w1,
    check_w2 as check_w2,
    check_w3 as check_w3,
)
