"""`make matrix`: the package and the notebooks on every supported Python, each with two JAX."""

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False  # a missing Python is named and skipped
os.environ["UV_PYTHON_DOWNLOADS"] = "never"

# `make test` runs these tests, with the versions of the lock. strict=True, because pytest would
# silently ignore a folder that is missing.
BUILT = Path("tests/built").resolve(strict=True)
FACTS = str(Path("tests/book/test_facts.py").resolve(strict=True))


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize("jax", ["jax==0.7.2", "jax"], ids=["colab", "newest"])
def matrix(session: nox.Session, jax: str) -> None:
    """Run the tests of the package and each notebook, and keep the verdicts of this JAX."""
    session.install("--upgrade", "--group", "test", "--editable", ".[book]", jax)
    session.run("python", "-c", "import jax; print('jax', jax.__version__)")
    package = f"--ignore={BUILT}"
    session.run("pytest", "-m", "not timed and not weekly", "--dist=loadgroup", "-n3", package)
    session.run("pytest", "-m", "timed or weekly", package, f"--ignore={FACTS}")
    # A fact that fails (1) is kept beside the verdicts of the claims, and ends the last command.
    report = f"{session.create_tmp()}/facts.xml"
    weekly = "pytest", "-m", "weekly", FACTS, f"--junitxml={report}"
    session.run(*weekly, success_codes=[0, 1])
    notebooks = sorted(map(str, Path("book").rglob("*.ipynb")))
    session.run("python", "evidence/versions.py", report, *notebooks)
