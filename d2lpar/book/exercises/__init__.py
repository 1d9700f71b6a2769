"""Check a reader's answer by its behaviour, and say where to look."""

from d2lpar.book.exercises.report import MIME_TYPE as MIME_TYPE, Report as Report
from d2lpar.book.exercises.v1 import check_v1 as check_v1
from d2lpar.book.exercises.v2 import check_v2 as check_v2
from d2lpar.book.exercises.v3 import check_v3 as check_v3
from d2lpar.book.exercises.x1 import check_x1 as check_x1
from d2lpar.book.exercises.x2 import check_x2 as check_x2
from d2lpar.book.exercises.x3 import check_x3 as check_x3
from d2lpar.book.exercises.x4 import check_x4 as check_x4
from d2lpar.book.exercises.x5 import check_x5 as check_x5
from d2lpar.book.exercises.y1 import check_y1 as check_y1
from d2lpar.book.exercises.y2 import check_y2 as check_y2
from d2lpar.book.exercises.y3 import check_y3 as check_y3
from d2lpar.book.exercises.y4 import check_y4 as check_y4
from d2lpar.book.exercises.y5 import check_y5 as check_y5
from d2lpar.book.exercises.z1 import check_z1 as check_z1
from d2lpar.book.exercises.z2 import check_z2 as check_z2
from d2lpar.book.exercises.z3 import check_z3 as check_z3
