"""Systems compared on the same splits: what is the same for all, what is kept, and what a failure costs."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokengt
from tests.workflow.small import QUIET, TINY, molecule_csv, molecules, read_csv, write_csv
from tokengt import GraphBatch
from tokengt.files import folder_lock
from tokengt.training import floor, forest
from tokengt.workflow import comparing_cells
from tokengt.workflow.comparing import compare
from tokengt.workflow.comparing_report import COST
from tokengt.workflow.comparing_results import Comparison

SMALL = {f"small:{name}": value for name, value in TINY.items() if name.startswith("model.")}
BRIEF = {"training.epochs": 2, "training.batch_size": 16}
KEYS = (
    "experiment system dataset split metric mean std runs parameters graphs_per_s memory_gib asymptotics device "
    "commit paper"
)


class Mean(nn.Module):
    """A user's own module: the mean of embedded atoms."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Embedding(119, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, batch: GraphBatch) -> Tensor:
        assert batch.node_features is not None
        atoms = self.atoms(batch.node_features[:, 0].long())
        sums = atoms.new_zeros(len(batch), 4).index_add(0, batch.nodes.ids, atoms)
        out: Tensor = self.head(sums / batch.nodes.lengths[:, None])
        return out


class Breaks(Mean):
    """Fails once it is trained, as a module with a bug would."""

    def forward(self, batch: GraphBatch) -> Tensor:
        if self.training:
            raise RuntimeError("the tensors | do not fit\nmore lines")
        return super().forward(batch)


def run(folder: Path, presets: Any = None, **more: Any) -> Comparison:
    source = folder / "data.csv"
    if not source.exists():
        molecule_csv(source)
    given: dict[str, Any] = {"target": "y", "settings": BRIEF, "options": QUIET, "device": "cpu", "seeds": 2, **more}
    return compare(source, folder / given.pop("out", "out"), presets or {"mean": Mean()}, **given)


def cells_of(out: Path, name: str) -> list[Path]:
    return sorted(path for path in (out / "cells" / name).iterdir() if path.is_dir())


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Few trees, and no pictures of single cells: these take most of the time, and are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forest, "TREES", 5)
        patched.setattr("tokengt.training.results.plot_curves", lambda *_: None)
        patched.setattr("tokengt.training.results.plot_test", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """A preset, a module and all floors, twice."""
    folder = tmp_path_factory.mktemp("compare")
    return folder / "out", run(folder, {"small": "small", "mine": Mean()}, settings={**BRIEF, **SMALL})


def test_every_system_has_the_same_splits_and_other_seeds_have_others(done: tuple[Path, Comparison]) -> None:
    out, comparison = done
    names = ["small", "mine", "training-labels", "linear-fingerprints", "random-forest"]
    assert [system.name for system in comparison.systems] == names
    parts = {
        name: [(out / "cells" / name / f"seed-{s}" / "split.csv").read_bytes() for s in (0, 1)] for name in names[:2]
    }
    assert parts["small"] == parts["mine"]
    assert parts["small"][0] != parts["small"][1]
    for seed in (0, 1):
        rows = [read_csv(out / "cells" / name / f"seed-{seed}" / "predictions.csv") for name in names]
        lines = [[(row["line"], row["y"]) for row in table] for table in rows]
        assert all(each == lines[0] for each in lines)


def test_a_cell_is_what_train_makes(done: tuple[Path, Comparison], tmp_path: Path) -> None:
    """There is no second loop: the weights of a cell are those of tokengt.train with the same seed."""
    out, comparison = done
    settings = {**BRIEF, **{name.removeprefix("small:"): value for name, value in SMALL.items()}}
    data = molecule_csv(tmp_path / "data.csv")
    tokengt.train(
        data, tmp_path / "run", target="y", preset="small", settings=settings, seed=1, device="cpu", options=QUIET
    )
    cell = out / "cells" / "small" / "seed-1"
    for name in ("model.safetensors", "predictions.csv", "metrics.jsonl"):
        assert (cell / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert comparison["small"].cells["seed-1"].value == summary["test"]["rmse"]
    assert comparison["training-labels"].cells["seed-1"].value == pytest.approx(summary["floor"]["rmse"])
    assert comparison["linear-fingerprints"].cells["seed-1"].value == pytest.approx(summary["linear"]["rmse"])


def test_means_deviations_and_paired_differences_are_those_of_the_cells(done: tuple[Path, Comparison]) -> None:
    """By hand: two numbers a, b have the deviation |a - b| / sqrt 2, and t of one degree of freedom is 12.7062."""
    _, comparison = done
    values = {system.name: system.values for system in comparison.systems}
    best = min(values, key=lambda name: sum(values[name]))
    assert comparison.reference == best
    assert comparison[best].difference is None
    for name, (first, second) in values.items():
        system = comparison[name]
        assert system.mean == pytest.approx((first + second) / 2)
        assert system.std == pytest.approx(abs(first - second) / 2**0.5)
        if name != best:
            apart = [first - values[best][0], second - values[best][1]]
            half = 12.706204736 * abs(apart[0] - apart[1]) / 2**0.5 * (1 / 2 + 4 / 32) ** 0.5
            assert system.difference is not None
            assert system.difference.centre == pytest.approx(sum(apart) / 2)
            assert system.difference.high == pytest.approx(sum(apart) / 2 + half)


def test_tables_have_the_agreed_keys_and_the_same_numbers(done: tuple[Path, Comparison]) -> None:
    out, comparison = done
    rows = json.loads((out / "table.json").read_text())
    assert all(list(row) == KEYS.split() for row in rows)
    assert [row["mean"] for row in rows] == [system.mean for system in comparison.systems]
    small = rows[0]
    assert (small["experiment"], small["dataset"], small["metric"], small["runs"]) == ("compare", "data.csv", "rmse", 2)
    assert small["split"] == "test (random, seeds 0 to 1, 80% / 10% / 10%)"
    assert small["parameters"] > 1000
    assert small["graphs_per_s"] > 0
    assert 0.05 < small["memory_gib"] < 64
    text = (out / "table.md").read_text()
    for system in comparison.systems:
        assert f"| {system.name} | {system.mean:.4g} | {system.std:.4g} | " in text
    assert comparison.verdict in text
    details = json.loads((out / "comparison.json").read_text())
    assert details["verdict"] == comparison.verdict
    assert details["systems"][0]["cells"]["seed-0"]["epochs"] == 2
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_comparison_is_not_trained_again(
    done: tuple[Path, Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one cell, and the tables keep their bytes, times included; a preset that comes later is added."""
    shutil.copytree(done[0].parent, tmp_path, dirs_exist_ok=True)
    systems = {"small": "small", "mine": Mean()}
    settings = {**BRIEF, **SMALL}
    trained: list[Path] = []
    usual = comparing_cells.timed_request
    monkeypatch.setattr(comparing_cells, "timed_request", lambda d, out, r: trained.append(out) or usual(d, out, r))
    run(tmp_path, systems, settings=settings)
    assert trained == []
    for name in ("table.md", "table.json", "comparison.json", "comparison.png"):
        assert (tmp_path / "out" / name).read_bytes() == (done[0] / name).read_bytes(), name
    more = run(tmp_path, {**systems, "other": Mean()}, settings=settings)
    assert [path.parent.name for path in trained] == ["other", "other"]
    assert more["small"].values == done[1]["small"].values
    with pytest.raises(ValueError, match="begun with other settings: settings was"):
        run(tmp_path, systems, settings={**settings, "training.epochs": 3})
    with pytest.raises(ValueError, match="is another store: target was y and is now z"):
        run(tmp_path, systems, settings=settings, target="z")


@pytest.mark.parametrize("killed_in", [("mine", "seed-0"), ("linear-fingerprints", "seed-1")])
def test_a_comparison_that_was_killed_ends_with_the_same_table(
    killed_in: tuple[str, str], done: tuple[Path, Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, unbroken = done
    systems, settings = {"small": "small", "mine": Mean()}, {**BRIEF, **SMALL}
    usual = comparing_cells.write_json

    def power_cut(file: Path, content: Any) -> None:
        if (file.parent.name, file.stem) == killed_in and content["found"] is not None:
            raise KeyboardInterrupt
        usual(file, content)

    monkeypatch.setattr(comparing_cells, "write_json", power_cut)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, systems, settings=settings)
    monkeypatch.setattr(comparing_cells, "write_json", usual)
    assert not (tmp_path / "out" / "table.md").exists()
    again = run(tmp_path, systems, settings=settings)
    assert [system.values for system in again.systems] == [system.values for system in unbroken.systems]
    tables = [(folder / "table.md").read_bytes().split(COST.encode())[0] for folder in (tmp_path / "out", out)]
    assert tables[0] == tables[1]
    for file in (out / "cells").rglob("predictions.csv"):
        assert (tmp_path / "out" / file.relative_to(out)).read_bytes() == file.read_bytes()


def test_one_system_that_fails_costs_its_cells_alone(tmp_path: Path) -> None:
    comparison = run(tmp_path, [Breaks(), Mean()], floors=False)
    assert comparison["Breaks"].failed == "seed-0: RuntimeError: the tensors | do not fit"
    assert comparison["Breaks"].mean is None
    assert len(comparison["Mean"].values) == 2
    row = "| Breaks | failed (seed-0: RuntimeError: the tensors \\| do not fit) |  |  |  |"
    assert row in (tmp_path / "out" / "table.md").read_text()
    assert "Breaks" not in [row["system"] for row in json.loads((tmp_path / "out" / "table.json").read_text())]


def test_folds_test_every_row_once_and_are_those_of_train(tmp_path: Path) -> None:
    comparison = run(tmp_path, folds=3, seeds=None, floors=False)
    cells = sorted((tmp_path / "out" / "cells" / "mean").glob("fold-?"))
    lines = [row["line"] for cell in cells for row in read_csv(cell / "predictions.csv")]
    assert len(lines) == len(set(lines)) == 40
    assert comparison.split == "3 folds, random, seed 0"
    assert comparison.overlap == pytest.approx(1, abs=0.1)
    data = tmp_path / "data.csv"
    folds = replace(QUIET, folds=3)
    tokengt.train(data, tmp_path / "run", target="y", model=Mean(), settings=BRIEF, device="cpu", options=folds)
    for cell in cells:
        for name in ("split.csv", "model.safetensors"):
            member = tmp_path / "run" / "members" / cell.name / name
            assert (cell / name).read_bytes() == member.read_bytes()


def test_one_training_is_compared_by_its_test_rows(tmp_path: Path) -> None:
    """The interval of the difference of two mean absolute errors is that of drawing test rows again."""
    comparison = run(tmp_path, seeds=1, reference="training-labels", settings={**BRIEF, "training.metric": "mae"})
    cells = tmp_path / "out" / "cells"
    errors = {}
    for name in ("mean", "training-labels"):
        rows = [row for row in read_csv(cells / name / "seed-0" / "predictions.csv") if row["y"]]
        errors[name] = np.array([abs(float(row["predicted_y"]) - float(row["y"])) for row in rows])
    apart = errors["mean"] - errors["training-labels"]
    difference = comparison["mean"].difference
    assert difference is not None
    assert difference.centre == pytest.approx(apart.mean())
    assert apart.min() <= difference.low < apart.mean() < difference.high <= apart.max()
    drawn = np.random.default_rng(5).choice(apart, (20_000, len(apart))).mean(1)
    assert (difference.low, difference.high) == pytest.approx(
        np.quantile(drawn, [0.025, 0.975]), abs=0.25 * np.ptp(drawn)
    )
    assert "paired bootstrap" in (tmp_path / "out" / "table.md").read_text()


def test_seeds_on_a_split_of_the_data_share_it(tmp_path: Path) -> None:
    smiles, values = molecules(24)
    parts = ["train"] * 16 + ["valid"] * 4 + ["test"] * 4
    write_csv(tmp_path / "data.csv", ("smiles", "y", "part"), zip(smiles, values, parts, strict=True))
    comparison = run(tmp_path, split="column:part")
    assert comparison.shared_split
    assert comparison.overlap == 0.0
    assert comparison["training-labels"].std == 0.0
    weights = [(tmp_path / "out" / "cells" / "mean" / f"seed-{s}" / "model.safetensors").read_bytes() for s in (0, 1)]
    assert weights[0] != weights[1], "a module of one's own begins with other weights at every seed"


def test_floors_that_cannot_be_fitted_are_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn may be missing; and fingerprints are of molecules."""

    def missing(*_: Any) -> None:
        raise ImportError("a random forest is grown by scikit-learn")

    monkeypatch.setattr(comparing_cells, "forest_floor", missing)
    monkeypatch.setattr(floor, "has_fingerprints", lambda store: False)
    comparison = run(tmp_path)
    assert [system.name for system in comparison.systems] == ["mean", "training-labels"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "* random-forest is left out: a random forest is grown by scikit-learn\n" in text
    assert "* linear-fingerprints is left out: it reads fingerprints of molecules" in text


def test_classes_are_compared_by_their_frequency_and_probabilities(tmp_path: Path) -> None:
    smiles, values = molecules(40)
    labels = [("low", "middle", "high")[int(value > -2.5) + int(value > -1.5)] for value in values]
    write_csv(tmp_path / "data.csv", ("smiles", "y"), zip(smiles, labels, strict=True))
    model = Mean()
    model.head = nn.Linear(4, 3)
    comparison = run(tmp_path, [model], seeds=1, task="multiclass")
    assert comparison.task.metric == "accuracy"
    assert comparison.task.higher_is_better
    rows = read_csv(tmp_path / "out" / "cells" / "random-forest" / "seed-0" / "predictions.csv")
    right = sum(row["y"] == row["predicted_y"] for row in rows) / len(rows)
    assert comparison["random-forest"].mean == pytest.approx(right)


def test_a_budget_is_shared_by_the_trainings_of_a_system(tmp_path: Path) -> None:
    comparison = run(tmp_path, budget=1e-6, settings={**BRIEF, "training.epochs": 50}, floors=False)
    for seed in (0, 1):
        written = json.loads((tmp_path / "out" / "cells" / "mean" / f"seed-{seed}" / "run.json").read_text())
        assert written["training"]["minutes"] == 5e-7
    assert comparison["mean"].cells["seed-0"].epochs == 1
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| mean | 1 of 50 |" in text
    assert "Every system had 1e-06 minutes, shared evenly by its trainings" in text


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"presets": "smal,gin"}, r"preset 'smal' is unknown \(did you mean small\?\)"),
        ({"presets": ","}, "there is no preset to compare"),
        ({"presets": "gin,gin"}, "two systems are called 'gin'"),
        ({"presets": {"../x": "gin"}}, "'../x' cannot be the name of a system"),
        ({"presets": "random-forest"}, "preset 'random-forest' is unknown"),
        ({"presets": {"random-forest": "gin"}}, "two systems are called 'random-forest'"),
        ({"folds": 3}, "3 folds and 2 seeds are asked for"),
        ({"folds": 2, "seeds": None}, "folds is 2; expected at least 3"),
        ({"seeds": 0}, "seeds is 0; expected 1 to 1,000"),
        ({"seeds": 1001}, "seeds is 1001; expected 1 to 1,000"),
        ({"budget": 0.0}, "budget is 0.0; expected minutes above 0"),
        ({"budget": float("nan")}, "budget is nan; expected minutes above 0"),
        ({"budget": 1.0, "settings": {"training.minutes": 1}}, "a budget and training.minutes are given"),
        ({"reference": "meen"}, r"reference is 'meen' \(did you mean mean\?\)"),
        ({"settings": {"meen:training.epochs": 1}}, r"is for the system 'meen' \(did you mean mean\?\)"),
        ({"settings": {"mean:training.epoch": 1}}, "mean: "),
        ({"settings": {"model.dim": 8}}, "mean: setting model.dim is for presets"),
        ({"options": replace(QUIET, ensemble=2)}, "options.ensemble does not apply"),
        ({"options": replace(QUIET, fractions=(0.9, 0.1, 0.0))}, "the test part is empty"),
        ({"target": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    wishes: Mapping[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_cells, "timed_request", lambda *_: pytest.fail("a training began"))
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path, **wishes)
    assert not list((tmp_path / "out").glob("cells/*/*"))


def test_a_folder_is_had_alone_and_files_of_others_are_left(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with folder_lock(tmp_path / "out", lambda: None), pytest.raises(ValueError, match="another comparison is at work"):
        run(tmp_path)
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as thesis\.txt"):
        run(tmp_path)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_progress_says_what_was_found_and_how_long_it_will_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    run(tmp_path, floors=False, options=replace(QUIET, quiet=False))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mean, ")]
    assert lines[0].startswith("mean, seed-0: rmse ")
    assert "; 1 of 2 cells, about " in lines[0]
    assert lines[0].endswith(" s left")
    assert lines[1].endswith("; 2 of 2 cells")
