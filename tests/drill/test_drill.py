"""The drill: thousands of hostile calls, each judged by an oracle. ``make drill`` runs it, in a quarter of an hour."""

import json
import os
from pathlib import Path

import pytest

from tests.drill.campaign_disk import can_mount
from tests.drill.campaigns import CAMPAIGNS, run_cases
from tests.drill.workshop import Workshop

SLICES = [
    pytest.param(name, start, id=f"{name}-{start}")
    for name, campaign in CAMPAIGNS.items()
    for start in range(0, campaign.cases, campaign.slice)
]


@pytest.mark.drill
@pytest.mark.parametrize(("name", "start"), SLICES)
def test_nothing_is_lost_and_nothing_is_silently_wrong(name: str, start: int, home: Path, shop: Workshop) -> None:
    """A user would lose rows, files or trust in a number."""
    campaign = CAMPAIGNS[name]
    if name == "disk" and not can_mount(home / "can"):
        pytest.skip("small disks need the right to mount")
    outcome = run_cases(name, range(start, min(start + campaign.slice, campaign.cases)), home, shop)
    counts = os.environ.get("TOKENGT_DRILL")
    if counts:
        Path(counts).mkdir(parents=True, exist_ok=True)
        (Path(counts) / f"{name}-{start}.json").write_text(json.dumps(outcome.to_json()))
    assert not outcome.faults, "\n".join(map(str, outcome.faults))
