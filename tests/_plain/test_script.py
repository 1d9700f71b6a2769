import pytest
from commands import git, python_with, watch_script


def test_a_script_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    program = """
import os, sys, beside
print(__name__, __file__, sys.argv[1:], beside.word, 'jax' in sys.modules, 'numpy' in sys.modules)
os.chdir('/')
os.remove(__file__)
os.environ['JAX_ENABLE_X64'] = '1'
import threading, time
def late():
    time.sleep(0.2)
    print(threading.current_thread().name, file=sys.stderr)
threading.Thread(target=late, name='late').start()
"""
    status, out, said = watch_script(tmp_path, program, "--json", "5")
    asked = "['--json', '5']"
    assert (status, out) == (0, f"__main__ {tmp_path / 'script.py'} {asked} beside False False\n")
    assert said.index("late") < said.index("Watched for")


def test_a_module_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("STEPS = 3")
    (tmp_path / "trainer" / "train.py").write_text(
        "import sys\nfrom . import STEPS\nprint(STEPS, sys.argv[1:], __package__, __name__)"
    )
    status, out, said = watch_script(tmp_path, "", module=["-m", "trainer.train", "--steps", "3"])
    assert (status, out) == (0, "3 ['--steps', '3'] trainer __main__\n")
    status, _, said = watch_script(tmp_path, "", module=["-m", "nowhere"])
    assert (status, "There is no module 'nowhere'" in said) == (1, True)


@pytest.mark.parametrize("command", ["watch", "run -n 1", "compare --before HEAD --rounds 1"])
def test_with_the_option_p_of_python_the_folder_of_the_script_is_not_searched(tmp_path, command):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "beside.py").touch()
    (tmp_path / "jobs" / "script.py").write_text("import beside")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "both"]):
        git(*words, cwd=tmp_path)
    command = "-P", "-m", "d2lpar", *command.split(), "jobs/script.py"
    done = python_with(*command, folder=tmp_path)
    assert "No module named 'beside'" in done.stderr + done.stdout
