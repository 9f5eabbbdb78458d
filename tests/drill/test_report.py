"""The page says what the drill counted."""

import json

import pytest

from tests.drill.report import PAGE, RESULTS, page_with, table

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="no drill was run yet: make drill")


def test_the_page_has_the_counts_of_the_last_drill() -> None:
    """A reader would be told numbers of another drill."""
    parts = json.loads(RESULTS.read_bytes())
    assert page_with(PAGE.read_text(), parts) == PAGE.read_text()
    assert table(parts) in PAGE.read_text()


def test_the_last_drill_was_large_enough_and_found_nothing() -> None:
    parts = json.loads(RESULTS.read_bytes())
    assert sum(part["calls"] for part in parts.values()) >= 3000
    assert sum(part["kills"] for part in parts.values()) >= 30
    assert all(count == 0 for part in parts.values() for count in part["faults"].values())
