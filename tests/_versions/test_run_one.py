"""Which modules a version may have imported; that it runs is tested with the command."""

import sys
from types import SimpleNamespace

import pytest

from d2lpar._versions.run_one import check_imports


@pytest.mark.parametrize(
    ("file", "python", "error", "caution"),
    [
        ("others/model.py", ".", "It has imported model from", ""),
        ("link/model.py", ".", "It has imported model from", ""),
        ("others/own/model.py", ".", "", ""),
        ("others/env/lib/model.py", "others/env", "", ""),
        ("others/env/site-packages/model.py", ".", "", ""),
        ("others/env/dist-packages/model.py", ".", "", ""),  # On Debian.
        ("site-packages/model/__init__.py", ".", "", "the installed model was imported, but the"),
    ],
)
def test_a_version_imports_from_its_own_folder_or_from_what_is_installed(
    file, python, error, caution, tmp_path, monkeypatch, capsys
):
    """`others` is the user's repository; the version that runs, and a Python, may lie in it."""
    others = tmp_path / "others"
    (others / "python" / "model").mkdir(parents=True)
    (others / "python" / "model" / "__init__.py").touch()
    (tmp_path / "link").symlink_to(others)
    monkeypatch.setattr(sys, "modules", {"model": SimpleNamespace(__file__=tmp_path / file)})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / python))
    if error:
        with pytest.raises(SystemExit, match=error):
            check_imports(others, others / "own")
    else:
        check_imports(others, others / "own")
        assert caution in capsys.readouterr().err
