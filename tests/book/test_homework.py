"""What of a reader's file runs for an answer."""

import json

import pytest

from d2lpar import D2lparError
from d2lpar.book.homework import needed_for, statements_of

PREFETCH = "def my_prefetch(n):\n    return scaled(n)\n"


def answer_in(file, name="my_prefetch"):
    names = {}
    for statement in needed_for([name], statements_of(file)):
        exec(statement.code, names)
    return names[name]


@pytest.mark.parametrize(
    "others",
    [
        "def scaled(n): return FACTOR * n\nFACTOR = 2",
        "F = 2\nimport not_there\nwhile True: pass\nprint(not_there)\nscaled = F.__mul__",
        "if True:\n    from operator import add\nelse:\n    f()\ndef scaled(n): return add(n, n)",
        "from __future__ import annotations\ndef scaled(n: Undefined): return 2 * n\nx = input()",
        "from operator import *\ndef scaled(n: int): return add(n, n)",
        "def scaled(n):\nreturn 2 * n\ndef scaled(n):\n    return 2 * n\n",
        "for i in n\ntext = '''\ndef scaled(n): return 0\n'''\nscaled = (\n    lambda n: 2 * n\n)",
        "scaled = lambda n: sum(x for x in [n, n])\nx = exit()\ny = '\0'\nz = 3 +",
    ],
)
def test_of_a_file_only_those_statements_run_that_an_answer_needs(others, tmp_path):
    for number, text in enumerate((PREFETCH + others, f"{others}\n{PREFETCH}")):
        file = tmp_path / f"{number}.py"
        file.write_text(text)
        assert answer_in(file)(21) == 42


def test_of_a_notebook_the_lines_for_jupyter_are_left_out(tmp_path):
    cells = [
        "%%time\ntry:\n    import math\nexcept ImportError:\n    %pip install math",
        ["!ls\n", "jax?\n", "def scaled(n):\n", "    return n * math.gcd(2, 4)"],
        f"{PREFETCH}\nexercises.check_z2(my_prefetch)",
    ]
    cells = [{"cell_type": "code", "source": source} for source in cells]
    file = tmp_path / "homework.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "def"}, *cells]}))
    assert answer_in(file)(21) == 42


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", None, "No such file"),
        ("homework.txt", "", "must end in .py or .ipynb"),
        ("homework.ipynb", "# no JSON", "cannot be read: Expecting value"),
        ("homework.ipynb", "{}", "cannot be read: 'cells'"),
    ],
)
def test_a_file_that_is_no_homework_is_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(D2lparError, match=message):
        statements_of(tmp_path / name)
