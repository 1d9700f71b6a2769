import os
import subprocess
import sys

import jax
import pytest

from d2lpar import counted, usable_cores
from d2lpar.__main__ import main
from d2lpar.book.claims import Claim
from d2lpar.book.results import collect, compare_results, load, save
from d2lpar.machine import this_machine


def run(*arguments, **environment):
    """Run `python -m d2lpar` and return how it ended and what it printed."""
    command = [sys.executable, "-m", "d2lpar", *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, encoding="utf-8"
    )


@pytest.fixture
def files(tmp_path):
    """Two files of results that differ in a verdict."""
    paths = tmp_path / "one.json", tmp_path / "two.json"
    for path, count in zip(paths, (3, 5), strict=True):
        made = Claim("Few are enough.", (counted("how many", count) < 4,))
        save(collect(path.stem, {"book/page": [made._repr_mimebundle_()]}), path)
    return paths


def test_it_says_what_jax_sees_on_this_machine():
    done = run(JAX_NUM_CPU_DEVICES="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{this_machine().processor}, {usable_cores()} cores, ")
    assert "\nDevices of JAX: 2 x cpu" in done.stdout
    assert f", jax {jax.__version__}, " in done.stdout


def test_it_compares_two_files_of_results(files):
    text = main(["results", *map(str, files)])
    assert text == compare_results(*map(load, files))
    assert "one holds here\n" in text
    assert "two does not hold here\n" in text


def test_the_comparison_is_printed(files):
    done = run("results", *files)
    assert (done.returncode, done.stdout.strip()) == (0, main(["results", *map(str, files)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"schema": 1', "is no whole file of results"), (None, "No such file")],
    ids=["truncated", "missing"],
)
def test_a_file_that_cannot_be_read_is_one_line_and_no_traceback(files, content, message):
    good, bad = files
    bad.unlink()
    if content is not None:
        bad.write_text(content)
    done = run("results", good, bad)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m d2lpar: ")
    assert str(bad) in line
    assert message in line


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["results"], ["results", "one.json"], ["--nonsense"]],
    ids=" ".join,
)
def test_what_it_does_not_know_is_answered_with_how_it_is_used(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: python -m d2lpar")


def test_help_says_how_it_is_used(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "results" in capsys.readouterr().out
