"""tokengt reproduce molecules: the same minutes for all, chosen on the validation part, kept, and told honestly."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.cli.command import here as command
from tests.cli.command import refused, settings, succeeded
from tests.experiments.small_molecules import TINY, here, opened, small_config, small_store
from tokengt.config import override
from tokengt.experiments.molecules.datasets import BENCHMARKS, HARTREE
from tokengt.experiments.molecules.plan import Job, MoleculesConfig
from tokengt.experiments.molecules.report import table_markdown
from tokengt.experiments.molecules.run import run_molecules
from tokengt.experiments.molecules.systems import ABLATION, SYSTEMS, TABLE, Size, systems_named
from tokengt.presets import PRESETS

# The keys of HOUSE.md, for every experiment.
KEYS = {
    *("experiment", "system", "dataset", "split", "metric", "mean", "std", "runs", "parameters", "graphs_per_s"),
    *("memory_gib", "asymptotics", "device", "commit", "paper"),
}
FAILS = {"graphormer:model.num_heads": "7"}


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("molecules"))


@pytest.fixture(scope="module")
def table(store: Path, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """Three systems and one that fails; what was trained in which order."""
    out, begun = tmp_path_factory.mktemp("table"), here(patch)
    run_molecules(small_config(store, "gin", "tokengt-lap", "tokengt-performer", "graphormer", settings=FAILS), out)
    return out, begun


def rows_of(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "table.json").read_text())
    return found


def test_screenings_come_first_then_what_is_told(table: tuple[Path, list[str]]) -> None:
    """A system that goes on with another one's run waits for it; where all screenings fail, nothing more is trained."""
    _, begun = table
    recipes = {name: ("own", *rates(name)) for name in ("gin", "tokengt-lap", "graphormer")}
    screens = [f"{name}/screen-{recipe}/seed-0" for name, tried in recipes.items() for recipe in tried]
    assert begun == screens + [f"{name}/chosen/seed-0" for name in ("gin", "tokengt-lap", "tokengt-performer")]


def rates(name: str) -> tuple[str, ...]:
    return ("0.0005", "0.002") if name == "gin" else ("0.001", "0.002")


def test_rows_have_the_agreed_keys(table: tuple[Path, list[str]]) -> None:
    rows = rows_of(table[0])
    assert all(set(row) == KEYS for row in rows)
    assert [row["system"] for row in rows] == ["GIN", "TokenGT (Lap)", "TokenGT (Lap) + Performer"]
    for row in rows:
        assert (row["experiment"], row["dataset"], row["split"], row["metric"]) == (
            "molecules",
            "zinc12k",
            "test",
            "mae",
        )
        assert (row["runs"], row["std"]) == (1, None)
        assert row["paper"] is None  # The paper has PCQM4Mv2 alone.
        assert isinstance(row["mean"], float)
        assert isinstance(row["parameters"], int)
    assert [row["asymptotics"] for row in rows] == ["O(n + m)", "O((n + m)^2)", "O(n + m)"]
    assert rows[1]["parameters"] == rows[2]["parameters"]


def test_a_system_that_fails_costs_its_own_line_alone(table: tuple[Path, list[str]]) -> None:
    text = (table[0] / "zinc12k" / "table.md").read_text()
    lines = text.splitlines()
    failed = next(line for line in lines if line.startswith("| Graphormer"))
    assert failed.split(" | ")[1:3] == ["failed", "0"]
    # Systems without a result stand last, with the paper's numbers all the same; the reason follows the table.
    assert lines.index(failed) == max(place for place, line in enumerate(lines) if line.startswith("|"))
    assert failed.endswith("| 48.3M | 0.0864 |")
    assert "\n- Graphormer: screen-own, seed 0: dim 96 is no multiple of num_heads 7" in text.replace(
        "0.002", "own"
    ).replace("0.001", "own")


def test_the_table_stands_beside_the_papers_numbers(table: tuple[Path, list[str]]) -> None:
    text = (table[0] / "zinc12k" / "table.md").read_text()
    head, line = (next(line for line in text.splitlines() if line.startswith(word)) for word in ("| system", "| GIN"))
    assert head.endswith("| paper: parameters | paper: PCQM4Mv2 valid MAE, eV |")
    assert line.endswith("| 3.8M | 0.1195 |")
    assert "1 minutes of training for each system by the clock, its screenings included" in text
    assert (table[0] / "zinc12k" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_only_what_will_be_read_again_is_kept(table: tuple[Path, list[str]]) -> None:
    cells = table[0] / "zinc12k" / "cells" / "gin"
    assert not list(cells.glob("**/checkpoints"))
    assert [file.parent.parent.name for file in cells.glob("**/model.safetensors")] == ["chosen"]


def test_the_same_call_trains_nothing_again_and_seeds_are_added(
    table: tuple[Path, list[str]], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other systems of an earlier call, and rows of another data set, stay as they are."""
    out, begun, said = tmp_path / "table", here(monkeypatch), list[str]()
    shutil.copytree(table[0], out)
    run_molecules(small_config(store, "gin"), out, said.append)
    assert begun == said == []
    assert rows_of(out) == rows_of(table[0])
    (out / "table.json").write_text(json.dumps([{**rows_of(out)[0], "dataset": "qm9"}]))
    run_molecules(small_config(store, "gin", seeds=2), out, said.append)
    assert begun == ["gin/chosen/seed-1"]
    assert said[0].startswith("gin/chosen/seed-1: validation mae ")
    assert said[0].endswith("; 5 of 5 trainings")
    other, gin, *_ = rows_of(out)
    assert (other["dataset"], len(rows_of(out))) == ("qm9", 4)
    runs = [out / "zinc12k" / "cells" / "gin" / "chosen" / f"seed-{seed}" for seed in (0, 1)]
    values = [json.loads((run / "summary.json").read_text())["test"]["mae"] for run in runs]
    assert (gin["runs"], gin["mean"]) == (2, pytest.approx(sum(values) / 2))
    assert gin["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_a_table_begun_otherwise_is_refused_before_anything_is_trained(
    table: tuple[Path, list[str]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = here(monkeypatch)
    with pytest.raises(ValueError, match=r"was begun with other settings: settings was .*'training.minutes': '0.1'"):
        run_molecules(small_config(store, "gin", minutes=2.0), table[0])
    assert begun == []


def test_recipes_are_chosen_by_the_validation_part_alone(
    table: tuple[Path, list[str]], store: Path, tmp_path: Path
) -> None:
    """Other validation numbers, and another recipe is chosen; other test numbers change nothing."""
    home = tmp_path / "zinc12k"
    shutil.copytree(table[0] / "zinc12k", home)
    plan = opened(small_config(store, "gin"), home)
    gin = SYSTEMS["gin"]
    for recipe in plan.recipes(gin):
        for screen in plan.screens(gin):
            wanted = screen.recipe is recipe
            run = plan.folder(screen)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            lines[0]["valid"]["mae"] = 0.001 if wanted else 100.0
            lines[1]["valid"]["mae"] = 50.0
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            summary = {**json.loads((run / "summary.json").read_text()), "test": {"mae": 9.0 if wanted else 0.0}}
            (run / "summary.json").write_text(json.dumps(summary))
        decided = plan.decided(Job(gin, None, True))
        assert decided is not None
        assert decided.recipe is recipe
        assert plan.screened(gin)[recipe.name] == 0.001


@pytest.mark.parametrize("screen", [0.05, 0.2])
def test_every_system_has_the_same_minutes(store: Path, tmp_path: Path, screen: float) -> None:
    """Its screenings, its training, and where it goes on with another run that run's training."""
    plan = opened(small_config(store, *TABLE, minutes=7.0, screen=screen), tmp_path)
    for system in plan.lines.values():
        jobs = [*plan.screens(system), Job(system, None, True)]
        if system.start is not None:
            jobs.append(Job(plan.lines[system.start], None, True))
        assert sum(map(plan.minutes, jobs)) == pytest.approx(7.0)
        for job in jobs:
            asked = plan.asked(replace(job, recipe=job.recipe or next(iter(plan.recipes(job.system)), None)))
            assert asked.settings is not None
            assert asked.settings["training.minutes"] == plan.minutes(job)
    assert plan.minutes(Job(SYSTEMS["gin"], None, True, 1)) == plan.minutes(Job(SYSTEMS["gin"], None, True, 0))


def test_a_preset_is_a_system_and_one_recipe_has_all_the_time(store: Path, tmp_path: Path) -> None:
    plan = opened(small_config(store, "small", minutes=3.0), tmp_path)
    (system,) = plan.lines.values()
    assert [recipe.rate for recipe in plan.recipes(system)] == [1e-3, 2e-3]
    single = replace(system, recipes={"small": system.recipes["small"][:1]})
    assert plan.screens(single) == []
    assert plan.minutes(Job(single, None, True)) == 3.0
    decided = plan.decided(Job(single, None, True))
    assert decided is not None
    assert decided.recipe is single.recipes["small"][0]


def test_all_of_table_2_is_there_with_the_papers_numbers() -> None:
    """Fourteen rows in the paper's order, then what is newer; the ablation beside TokenGT (Lap)."""
    paper = [SYSTEMS[name] for name in TABLE if SYSTEMS[name].paper is not None]
    assert [(system.label, system.paper_parameters, system.paper) for system in paper] == [
        ("GCN", 2.0, 0.1379),
        ("GIN", 3.8, 0.1195),
        ("GAT", 6.7, 0.1302),
        ("GCN-VN", 4.9, 0.1153),
        ("GIN-VN", 6.7, 0.1083),
        ("GAT-VN", 6.7, 0.1192),
        ("GAT-VN (large)", 55.2, 0.1361),
        ("Graphormer", 48.3, 0.0864),
        ("EGT", 89.3, 0.0869),
        ("GRPE", 46.2, 0.0890),
        ("Transformer", 48.5, 0.2340),
        ("TokenGT (ORF)", 48.6, 0.0962),
        ("TokenGT (Lap)", 48.5, 0.0910),
        ("TokenGT (Lap) + Performer", 48.5, 0.0935),
    ]
    assert ABLATION[0] == "tokengt-lap"
    assert [system.name for system in systems_named(["tokengt-performer"])] == ["tokengt-lap", "tokengt-performer"]
    for system in SYSTEMS.values():
        assert all(len(recipes) <= 3 for recipes in system.recipes.values())
    gat = SYSTEMS["gat"].recipes["medium"][0]
    assert (gat.name, gat.rate, gat.settings["batch_size"], gat.settings["schedule"]) == ("own", 1e-3, 256, "steps")


@pytest.mark.parametrize(("size", "least", "most"), [("small", 400_000, 500_000), ("medium", 4e6, 6e6)])
def test_systems_are_as_large_as_their_data_set_asks(store: Path, size: Size, least: float, most: float) -> None:
    """Below 500,000 parameters, for peptides-func with its ten targets too; about five million for QM9.

    GAT-VN (large) has eight times as many, as in the paper.
    """
    data = small_config(store).benchmark.opened(store, store.parent / "unused", quiet=True)
    for system in (system for system in SYSTEMS.values() if system.start is None):
        own = {path.removeprefix("model."): value for path, value in system.settings_of(size).items()}
        config = override(PRESETS[system.preset_of(size)]().fit(data, 10 if size == "small" else 1), own, "model")
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in config.build().parameters())
        times = 8 if system.name == "gat-vn-large" else 1
        assert least < count / times < most, f"{system.name} has {count:,}"


def test_labels_of_qm9_become_electronvolts(tmp_path: Path) -> None:
    store = small_store(tmp_path, "gap", count=10)
    plain, told = (
        each.opened(store, tmp_path / "unused", quiet=True)
        for each in (replace(BENCHMARKS["qm9"], factor=1.0), BENCHMARKS["qm9"])
    )
    torch.testing.assert_close(told.targets, plain.targets * 27.2114)
    assert HARTREE == 27.2114
    assert [BENCHMARKS["qm9"].metrics, BENCHMARKS["pcqm4mv2"].split] == [("mae", "rmse"), "valid"]


def test_a_metric_with_a_unit_and_one_that_is_better_when_higher() -> None:
    """Average precision sorts the other way round, and missing numbers come last."""
    entry = {
        "label": "a",
        "seeds": [0],
        "validation": [],
        "recipe": None,
        "screened": {},
        "minutes": 1.0,
        "at_once": 1,
        "curve": [],
        "failed": None,
        "device": "cpu",
        "commit": None,
        "parameters": 5e6,
        "graphs_per_s": 1234.5,
        "memory_gib": 0.5,
        "epochs": 3,
    }
    found = {
        name: {**entry, "label": name, "values": {"average_precision": values}}
        for name, values in {"low": [0.5, 0.7], "none": [None], "high": [0.8]}.items()
    }
    text = table_markdown(BENCHMARKS["peptides-func"], found, higher_is_better=True)
    lines = [line.split(" | ")[:6] for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert lines[0][1] == "test AP"
    assert lines[1:] == [
        ["| high", "0.8000", "1", "5.00M", "1,234", "0.50"],
        ["| low", "0.6000 ± 0.1414", "2", "5.00M", "1,234", "0.50"],
        ["| none", "failed", "0", "5.00M", "1,234", "0.50"],
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "zinc12"}, "dataset is 'zinc12'.*did you mean zinc12k.*expected one of qm9, zinc12k"),
        ({"systems": ("gni",)}, "system 'gni' is unknown.*expected one of gcn, gin"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"at_once": 0}, "at_once is 0; expected at least 1"),
        ({"minutes": 0.0}, "minutes is 0.0; expected a number above 0"),
        ({"minutes": float("inf")}, "minutes is inf; expected a number above 0"),
        ({"screen": 0.4}, "screen is 0.4; expected above 0 and below 1/3"),
        ({"settings": {"gcn:model.dim": "3"}}, "for the system 'gcn'.*there are .*'gin'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(MoleculesConfig("zinc12k", ("gin",)), **changes)  # type: ignore[arg-type]


def test_data_that_cannot_be_the_table_is_refused(store: Path, tmp_path: Path) -> None:
    whole = small_store(tmp_path, split=False, count=10)
    with pytest.raises(ValueError, match="has no split of its own; make it by tokengt prepare zinc12k --out STORE"):
        run_molecules(small_config(whole), tmp_path / "a")
    with pytest.raises(ValueError, match="the store has no target 'gap'"):
        run_molecules(replace(small_config(store, "gin"), dataset="qm9"), tmp_path / "b")
    with pytest.raises(ValueError, match="nothing does not exist"):
        run_molecules(small_config(tmp_path / "nothing"), tmp_path / "c")
    assert not any((tmp_path / name).exists() for name in "abc")


def test_the_command_prints_the_table_and_refuses_in_one_sentence(
    table: tuple[Path, list[str]], store: Path, tmp_path: Path
) -> None:
    """What is finished is told again without a training."""
    shutil.copytree(table[0], tmp_path / "table")
    own = {name: value for name, value in TINY.items() if name.startswith(("gin:", "training."))}
    options = ["--data", store, "--device", "cpu", "--out", tmp_path / "table", "--minutes", "1", *settings(own)]
    said = succeeded(command("reproduce", "molecules", "--dataset", "zinc12k", "--systems", "gin", *options)).stdout
    home = tmp_path / "table" / "zinc12k"
    assert said == f"{(home / 'table.md').read_text()}\nopen {home / 'curves.png'}\n"
    sentence = refused(command("reproduce", "molecules", "--dataset", "zinc12k", *options, "--screen", "0.5"))
    assert "screen is 0.5" in sentence
