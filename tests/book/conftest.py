"""What several tests of the book's part need."""

import json

import pytest
from drawings import style_of_the_book

from d2lpar.book import recorded

_style = pytest.fixture(style_of_the_book, autouse=True)


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A function that records claims of a machine with two cores, each time with a later date."""
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)

    def record(devices, *made, page="book/a"):
        day = 1 + len(list(tmp_path.iterdir()))
        results = {"machine": {"devices": devices, "cores": 2}, "versions": {"jax": "1.2.3"}}
        results["date"] = f"2026-01-0{day}"
        results["pages"] = {page: {"claims": [claim.as_dict() for claim in made]}}
        (tmp_path / f"{day}.json").write_text(json.dumps(results))
        for cached in (recorded._files, recorded._by_key):
            cached.cache_clear()

    return record
