"""tokengt reproduce molecules: seeds after the first repeat its recipe and its epochs, wherever they are trained."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.small_molecules import here, small_config, small_store
from tokengt.experiments.molecules.datasets import BENCHMARKS
from tokengt.experiments.molecules.plan import NO_FIRST
from tokengt.experiments.molecules.report import table_markdown
from tokengt.experiments.molecules.run import run_molecules

SYSTEMS = ("gin", "tokengt-lap", "tokengt-performer")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("molecules"))


@pytest.fixture(scope="module")
def table(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first seed of three systems, two epochs each."""
    out = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        here(patch)
        run_molecules(small_config(store, *SYSTEMS), out)
    return out


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return here(monkeypatch)


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def told(out: Path) -> dict[str, Any]:
    entries: dict[str, Any] = read(out / "zinc12k" / "found.json")
    return entries


def asked(out: Path, name: str) -> dict[str, Any]:
    """What a training was asked for."""
    wanted: dict[str, Any] = read(out / "zinc12k" / "cells" / f"{name}.json")["asked"]
    return wanted


def epochs(out: Path, name: str) -> int:
    return len((out / "zinc12k" / "cells" / name / "metrics.jsonl").read_text().splitlines())


def carried(table: Path, out: Path, change: Callable[[dict[str, Any]], object] = lambda found: None) -> dict[str, Any]:
    """Another machine: nothing but found.json is there. A recipe and epochs that the settings alone never come to."""
    found = told(table)
    for name, count, recipe in (("gin", 3.0, "0.002"), ("tokengt-lap", 4.0, "0.001"), ("tokengt-performer", 1.0, None)):
        found[name]["epochs"] = count
        if recipe is not None:
            found[name]["recipe"] = {"name": recipe, "rate": float(recipe)}
    change(found)
    (out / "zinc12k").mkdir(parents=True, exist_ok=True)
    (out / "zinc12k" / "found.json").write_text(json.dumps(found))
    return found


def test_a_later_seed_repeats_the_run_folder_of_the_first(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    """Its recipe and as many epochs, whatever the clock, the settings and found.json say of them."""
    out = tmp_path / "table"
    shutil.copytree(table, out)
    cell = out / "zinc12k" / "cells" / "gin" / "chosen" / "seed-0.json"
    content = read(cell)
    cell.write_text(json.dumps({**content, "found": {**content["found"], "epochs": 3}}))
    config = small_config(store, "gin", seeds=2)
    run_molecules(config, out)
    assert begun == ["gin/chosen/seed-1"]
    assert epochs(out, "gin/chosen/seed-1") == 3
    first, later = (asked(out, f"gin/chosen/seed-{seed}") for seed in (0, 1))
    own = {"training.epochs": "3", "training.minutes": "0.0", "training.patience": "0"}
    assert later["settings"] == {**first["settings"], **own}
    assert later["preset"] == first["preset"]
    run_molecules(config, out)
    assert begun == ["gin/chosen/seed-1"]


def test_a_later_seed_of_another_length_is_refused_before_anything_is_trained(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    """As one that an older version trained by the clock."""
    out = tmp_path / "table"
    shutil.copytree(table, out)
    cells = out / "zinc12k" / "cells" / "gin" / "chosen"
    content = read(cells / "seed-0.json")
    (cells / "seed-1.json").write_text(json.dumps({**content, "asked": {**content["asked"], "seed": 1}}))
    with pytest.raises(ValueError, match=r"seed-1.json was begun with other settings"):
        run_molecules(small_config(store, "tokengt-lap", "gin", seeds=2), out)
    assert begun == []


def test_seeds_are_added_where_only_found_json_is_left(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    """The first is not trained again and its numbers stay, also when more are added with the run folders gone again."""
    found = carried(table, tmp_path)
    run_molecules(small_config(store, "gin", "tokengt-lap", seeds=2, at_once=2), tmp_path)
    assert begun == ["gin/chosen/seed-1", "tokengt-lap/chosen/seed-1"]
    assert [epochs(tmp_path, name) for name in begun] == [3, 4]
    assert [asked(tmp_path, name)["settings"]["training.learning_rate"] for name in begun] == ["0.002", "0.001"]
    gin, before = told(tmp_path)["gin"], found["gin"]
    kept = ("recipe", "screened", "minutes", "at_once", "curve", "device", "commit", "graphs_per_s", "epochs")
    assert {name: gin[name] for name in kept} == {name: before[name] for name in kept}
    assert (gin["seeds"], gin["later"]["at_once"], gin["later"]["device"]) == ([0, 1], 2, before["device"])
    summary = read(tmp_path / "zinc12k" / "cells" / "gin" / "chosen" / "seed-1" / "summary.json")
    assert gin["values"]["mae"] == [before["values"]["mae"][0], summary["test"]["mae"]]
    assert len(gin["validation"]) == 2
    assert told(tmp_path)["tokengt-performer"] == found["tokengt-performer"]
    row = next(row for row in read(tmp_path / "table.json") if row["system"] == "GIN")
    assert (row["runs"], row["mean"]) == (2, pytest.approx(sum(gin["values"]["mae"]) / 2))
    assert "further seeds have the recipe and the epochs of the first one" in (
        tmp_path / "zinc12k" / "table.md"
    ).read_text(encoding="utf-8")

    shutil.rmtree(tmp_path / "zinc12k" / "cells")
    del begun[:]
    run_molecules(small_config(store, "gin", seeds=3), tmp_path)
    assert begun == ["gin/chosen/seed-2"]
    assert epochs(tmp_path, "gin/chosen/seed-2") == 3
    again = told(tmp_path)["gin"]
    assert (again["seeds"], again["epochs"], again["later"]["at_once"]) == ([0, 1, 2], 3.0, 2)
    assert again["values"]["mae"][:2] == gin["values"]["mae"]
    run_molecules(small_config(store, "gin"), tmp_path)
    assert told(tmp_path)["gin"] == again


def test_a_later_performer_goes_on_with_the_same_seed(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    """For its own epochs. Its start is trained with it, also where its result is told already but its run is gone."""
    carried(table, tmp_path)
    config = small_config(store, *SYSTEMS[1:], seeds=2)
    run_molecules(config, tmp_path)
    assert begun == ["tokengt-lap/chosen/seed-1", "tokengt-performer/chosen/seed-1"]
    wanted = asked(tmp_path, begun[1])
    assert (wanted["start"], wanted["attention"]) == ("tokengt-lap/chosen/seed-1", "favor")
    assert [epochs(tmp_path, name) for name in begun] == [4, 1]
    found = told(tmp_path)
    assert [found[name]["seeds"] for name in SYSTEMS] == [[0], [0, 1], [0, 1]]

    shutil.rmtree(tmp_path / "zinc12k" / "cells")
    run_molecules(config, tmp_path)
    assert len(begun) == 2
    found["tokengt-performer"] = told(table)["tokengt-performer"]
    (tmp_path / "zinc12k" / "found.json").write_text(json.dumps(found))
    run_molecules(config, tmp_path)
    assert begun[2:] == begun[:2]
    assert [told(tmp_path)[name]["seeds"] for name in SYSTEMS] == [[0], [0, 1], [0, 1]]
    assert told(tmp_path)["tokengt-lap"]["values"] == found["tokengt-lap"]["values"]


def test_a_recipe_that_is_no_more_costs_its_own_line_alone(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    before = carried(table, tmp_path, lambda found: found["gin"]["recipe"].update(name="0.7"))
    run_molecules(small_config(store, "gin", "tokengt-lap", seeds=2), tmp_path)
    assert begun == ["tokengt-lap/chosen/seed-1"]
    gin = told(tmp_path)["gin"]
    assert gin["failed"] == (
        "its first seed has the recipe '0.7' in found.json, and there is none of this name any more; there are own, "
        "0.0005, 0.002"
    )
    assert (gin["seeds"], gin["values"]) == ([0], before["gin"]["values"])
    assert f"- GIN: {gin['failed']}" in (tmp_path / "zinc12k" / "table.md").read_text(encoding="utf-8")


def test_without_a_first_seed_there_are_no_others(store: Path, tmp_path: Path, begun: list[str]) -> None:
    """All screenings fail, and the table says what follows from that."""
    run_molecules(
        small_config(store, "graphormer", seeds=3, settings={"graphormer:model.num_heads": "7"}), tmp_path / "a"
    )
    assert [name.split("/")[1] for name in begun] == ["screen-own", "screen-0.001", "screen-0.002"]
    failed = told(tmp_path / "a")["graphormer"]["failed"]
    assert failed.startswith("screen-0.002, seed 0: dim 96 is no multiple of num_heads 7")
    assert failed.endswith(f"; {NO_FIRST}")
    assert failed.count(NO_FIRST) == 1


def test_a_performer_without_its_start_says_which_run_is_not_here(
    table: Path, store: Path, tmp_path: Path, begun: list[str]
) -> None:
    """The first seed of TokenGT (Lap) is told, but its weights are on the other machine."""
    carried(table, tmp_path, lambda found: found.pop("tokengt-performer"))
    run_molecules(small_config(store, *SYSTEMS[1:]), tmp_path)
    assert begun == []
    assert told(tmp_path)["tokengt-performer"]["failed"] == (
        "tokengt-lap, which it goes on with, has no run folder of seed 0 here"
    )


def test_a_mean_of_epochs_is_nobodys_budget(table: Path, store: Path, tmp_path: Path, begun: list[str]) -> None:
    """Several seeds of an older version: they stay in the table, by the clock, and no more are added."""

    def several(found: dict[str, Any]) -> None:
        gin = found["gin"]
        gin["seeds"].append(1)
        gin["values"]["mae"].append(0.5)
        gin["validation"].append(0.5)

    carried(table, tmp_path, several)
    run_molecules(small_config(store, "gin", seeds=3), tmp_path)
    assert begun == []
    gin = told(tmp_path)["gin"]
    assert gin["seeds"] == [0, 1]
    assert gin["failed"] == "found.json does not tell the epochs of its first seed, which further seeds repeat"
    head = table_markdown(BENCHMARKS["zinc12k"], told(tmp_path), higher_is_better=False).splitlines()[0]
    assert "; further seeds of GIN have its minutes by the clock too; recipes" in head
    assert "the epochs of the first one" not in head
    assert "not by the clock" not in head


def test_the_heading_names_what_was_not_trained_by_the_clock(table: Path, tmp_path: Path) -> None:
    carried(table, tmp_path, lambda found: found["gin"]["settings"].update({"training.minutes": "0"}))
    head = table_markdown(BENCHMARKS["zinc12k"], told(tmp_path), higher_is_better=False).splitlines()[0]
    assert "; GIN by a number of epochs and not by the clock" in head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["gin"].update(minutes=5.0), "tells gin with 5 minutes, and 1 are asked for"),
        (lambda found: found["gin"].update(settings={"model.dim": "99"}), "tells gin with model.dim=99, and "),
        (lambda found: found["gin"].pop("epochs"), "found.json is no table of ours"),
        (lambda found: found["gin"].update(seeds=[0, 1]), "found.json is no table of ours"),
    ],
)
def test_what_is_told_otherwise_is_refused(
    table: Path,
    store: Path,
    tmp_path: Path,
    begun: list[str],
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    carried(table, tmp_path, change)
    with pytest.raises(ValueError, match=message):
        run_molecules(small_config(store, "gin", seeds=2), tmp_path)
    assert begun == []
