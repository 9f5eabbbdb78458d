"""What a folder is said to be, and what a finished run is said to be good for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import here, refused
from tokengt.training.results import Summary, read_summary
from tokengt.workflow.describing import info, outcome

FORMAT_2 = Path(__file__).parents[1] / "fixtures" / "format_2"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(FORMAT_2 / "alone", tmp_path / "run")
    return tmp_path / "run"


def test_a_summary_is_read_with_its_types_and_without_what_later_versions_add(run: Path) -> None:
    data = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(data | {"later": [1]}))
    summary = read_summary(run)
    assert summary == Summary("regression", "rmse", 4, data["test"], data["floor"], epochs=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test_rows": None}, r"summary\.json\.test_rows is None; expected a whole number"),
        ({"test_rows": 10**300}, r"summary\.json\.test_rows is 1000"),
        ({"test": [1]}, r"summary\.json\.test is \[1\]; expected names with their values"),
        ({"test": {"rmse": "good"}}, r"summary\.json\.test\.rmse is 'good'; expected a number"),
        ({"test": {"rmse": float("nan")}}, r"summary\.json\.test\.rmse is nan"),
        ({"members": 3}, r"summary\.json\.members is 3; expected a list"),
        ({"metric": {}}, r"summary\.json\.metric is \{\}; expected text"),
        (None, r"summary\.json holds \[\]; expected names with their values"),
    ],
)
def test_a_summary_of_wrong_types_is_one_sentence(run: Path, changes: dict[str, Any] | None, sentence: str) -> None:
    data = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps([] if changes is None else data | changes))
    for verb in (info, outcome):
        with pytest.raises(ValueError, match=sentence):
            verb(run)
    assert "summary.json" in refused(here("info", run))


@pytest.mark.parametrize(("source", "new"), [("graphs.pt", "NEW.pt"), ("folder", "NEW_FOLDER")])
def test_a_run_of_graphs_is_not_said_to_predict_a_table(run: Path, source: str, new: str) -> None:
    assert outcome(run)[-1] == f"predict with: tokengt predict {run} NEW.csv --out OUT.csv"
    data = json.loads((run / "run.json").read_text())
    data["source"]["name"], data["molecules"] = source, None
    (run / "run.json").write_text(json.dumps(data))
    assert outcome(run)[-1] == f"predict with: tokengt predict {run} {new} --out OUT.csv"
