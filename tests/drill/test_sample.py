"""A few cases of each quick part of the drill, so that it does not rot between two drills."""

from pathlib import Path

import pytest

from tests.drill.campaigns import run_cases
from tests.drill.workshop import Workshop


@pytest.mark.parametrize(("name", "count"), [("tables", 12), ("paths", 8), ("options", 5)])
def test_a_few_hostile_calls(name: str, count: int, home: Path, shop: Workshop) -> None:
    """Rows that vanish, a call that hangs, a traceback: what the drill looks for, in seconds."""
    outcome = run_cases(name, range(count), home, shop)
    assert outcome.calls >= count
    assert not outcome.faults, "\n".join(map(str, outcome.faults))
