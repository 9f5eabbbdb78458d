"""A run's folder: nothing in it is lost, two trainings do not mix, and a refused one leaves it as it was."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.small import QUIET, molecule_csv, train_small
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.files import folder_lock
from tokengt.training import run as running
from tokengt.training.start import Start
from tokengt.workflow import fitting
from tokengt.workflow.describing import info
from tokengt.workflow.run_folder import run_folder

FIXTURES = Path(__file__).parents[1] / "fixtures"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with the bytes of the files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return molecule_csv(tmp_path / "a.csv", 20)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training may begin: whatever is refused is refused before."""

    def trained(*_: Any) -> None:
        raise AssertionError("a training began")

    monkeypatch.setattr(running, "_train_one", trained)


@pytest.mark.usefixtures("untrained")
def test_a_store_in_the_folder_that_someone_prepared_is_never_lost(source: Path, tmp_path: Path) -> None:
    """``prepare a.csv --out proj/store``, then ``train typo.csv --out proj``."""
    proj = tmp_path / "proj"
    prepare(source, proj / "store", Recipe(targets=("y",)), workers=1, progress=False)
    before = contents(proj)
    other = molecule_csv(tmp_path / "b.csv", 12)
    for resume in (False, True):
        for data, wish, sentence in (
            (tmp_path / "typo.csv", {"target": "y"}, r"typo\.csv does not exist"),
            (source, {"target": "w"}, "no column 'w'"),
            (source, {"target": "z"}, "proj/store is another store: target was y and is now z"),
            (other, {"target": "y"}, "proj/store is another store: it was made from another a.csv"),
            (source, {"target": "y", "settings": {"model.dim": 33}}, "33"),
        ):
            with pytest.raises(ValueError, match=sentence):
                train_small(data, proj, resume=resume, **wish)
            assert contents(proj) == before


@pytest.mark.usefixtures("untrained")
def test_a_store_that_someone_is_preparing_is_never_lost(source: Path, tmp_path: Path) -> None:
    proj = tmp_path / "proj"
    shard = proj / "store" / ".shards" / "0123456789abcdef" / "000000-0123456789abcdef.safetensors"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"hours of work")
    before = contents(proj)
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"proj/store was begun from another file, with other settings"):
            train_small(source, proj, "y", resume=resume)
        assert contents(proj) == before


def test_a_store_of_the_very_data_is_used_as_it_is(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "proj" / "store"
    prepare(source, store, Recipe(targets=("y",)), workers=1, progress=False)
    before = contents(store)
    train_small(source, tmp_path / "proj", "y", settings={"training.epochs": 1})
    assert {name: content for name, content in contents(store).items() if not name.startswith("cache")} == before


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": "typo.csv"}, r"typo\.csv does not exist; expected a file"),
    ({"target": ()}, "there is no target to learn; name a column, .* the columns are smiles, y, z"),
    ({"target": "w"}, "no column 'w'"),
    ({"split": "given"}, "a table gives none by itself; name its column, as in column:NAME"),
    ({"split": "column:half"}, "no column 'half'"),
    ({"options": replace(QUIET, folds=2)}, "folds is 2; expected at least 3"),
    ({"options": replace(QUIET, folds=3), "split": "column:z"}, "folds make their own splits"),
    ({"options": replace(QUIET, fractions=(0.5, 0.1, 0.1))}, "fractions are .* that add up to 1"),
    ({"preset": "huge"}, "preset 'huge' is unknown"),
    ({"start": "nope"}, "nope does not exist; expected the folder of a trained run or of a saved model"),
    # These are found out only when the data is there.
    ({"settings": {"model.dim": 33}}, "33"),
    ({"options": replace(QUIET, folds=30)}, "30 folds need at least 30 graphs; there are 20"),
    ({"task": "binary"}, "0 or 1"),
]


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(("wish", "sentence"), REFUSED)
def test_a_refused_training_leaves_the_folder_as_it_was(
    source: Path, tmp_path: Path, wish: dict[str, Any], sentence: str
) -> None:
    asked = {"target": "y", "data": source, **wish}
    data = tmp_path / asked.pop("data")
    begun = asked.pop("start", None)
    if begun is not None:
        asked |= {"start": tmp_path / begun, "settings": {}}
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    for out in ("deep/er/run", "empty"):
        with pytest.raises(ValueError, match=sentence):
            train_small(data, tmp_path / out, **asked) if begun is None else fitting.train(
                data, tmp_path / out, options=QUIET, **asked
            )
        assert contents(tmp_path) == before


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("wish", [{"target": ()}, {"split": "given"}, {"options": replace(QUIET, folds=2)}])
def test_what_can_be_judged_at_once_is_judged_before_the_file_is_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any]
) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("the file was read")

    monkeypatch.setattr(fitting, "open_data", read)
    with pytest.raises(ValueError):
        train_small(source, tmp_path / "run", **{"target": "y", **wish})


@pytest.mark.usefixtures("untrained")
def test_a_refused_frame_leaves_no_table_behind(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"smiles": ["CCO", "CC", "C"], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="33"):
        train_small(frame, tmp_path / "run", "y", settings={"model.dim": 33})
    with pytest.raises(ValueError, match=r"there is no target to learn; .* the columns are smiles, y$"):
        train_small(frame, tmp_path / "run")
    assert contents(tmp_path) == {}


@pytest.mark.usefixtures("untrained")
def test_what_a_full_disk_interrupts_is_kept_for_the_next_try(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, syncs = os.fsync, 0

    def filling(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 2:  # The shard and its folder.
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(OSError, match=r"No space left on device: '.*run/store/graphs.safetensors'"):
        train_small(source, tmp_path / "run", "y")
    left = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.suffix for path in left] == [".safetensors"]


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_in_which_another_training_is_at_work_is_refused(source: Path, tmp_path: Path, resume: bool) -> None:
    with folder_lock(tmp_path / "run", lambda: None):
        with pytest.raises(ValueError, match=r"another training is at work in .*/run; wait for its end"):
            train_small(source, tmp_path / "run", "y", resume=resume)
        assert contents(tmp_path / "run") == {}


def test_the_folder_is_held_to_the_very_end_and_looked_at_again_once_it_is_had(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two may look at the folder before the first has begun its run, and get it after that ended."""
    seen = []

    def second(*_: Any) -> dict[str, Any]:
        monkeypatch.setattr(fitting, "refuse_to_overwrite", lambda *_: None)
        with pytest.raises(ValueError, match="run") as refused:
            train_small(source, tmp_path / "run", "y", seed=8)
        seen.append(str(refused.value))
        return {}

    monkeypatch.setattr(running, "write_results", second)
    train_small(source, tmp_path / "run", "y", seed=7, settings={"training.epochs": 1})
    second()
    assert "another training is at work" in seen[0]
    assert "already holds a run" in seen[1]
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["seed"] == 7


def test_what_kills_left_is_swept_when_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    left = [
        run / ".summary.json.k2_9xqab.part",
        run / "checkpoints" / ".last.safetensors.k2_9xqab.part",
        run / "members" / "model-0" / ".metrics.jsonl.k2_9xqab.part",
        run / "members" / "model-1" / "checkpoints" / ".best.safetensors.k2_9xqab.part",
    ]
    kept = [run / "run.json", run / ".notes.swp", run / "notes.part"]
    for file in (*left, *kept):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    with run_folder(run, resume=True, prepares=False):
        assert [file.exists() for file in (*left, *kept)] == [False] * 4 + [True] * 3


@pytest.mark.usefixtures("untrained")
def test_another_preset_is_told_in_words_of_presets(source: Path, tmp_path: Path) -> None:
    wishes: dict[str, Any] = {"target": "y", "device": "cpu", "options": QUIET, "settings": {"training.epochs": 1}}
    with pytest.raises(AssertionError, match="a training began"):
        fitting.train(source, tmp_path / "run", preset="gin", **wishes)
    before = contents(tmp_path / "run")
    assert "run.json" in before
    for preset in ("gin-vn", "small", "small-pretrained"):
        sentence = rf"run was begun with the preset gin, and this is the preset {preset}; name"
        with pytest.raises(ValueError, match=sentence):
            fitting.train(source, tmp_path / "run", preset=preset, resume=True, **wishes)
    with pytest.raises(ValueError, match=r"run was begun with other settings: .*training.epochs is 2, not 1"):
        fitting.train(
            source, tmp_path / "run", preset="gin", resume=True, **wishes | {"settings": {"training.epochs": 2}}
        )
    assert contents(tmp_path / "run") == before


def test_a_start_that_is_no_trained_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file is a file; expected the folder of a trained run"):
        Start.read(tmp_path / "file")
    fixture = FIXTURES / "format_1" / "softmax"
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "config.json"):
        (run / name).write_bytes((fixture / name).read_bytes())
    with pytest.raises(ValueError, match=r"run is not trained to the end; go on with it first"):
        Start.read(run)


@pytest.mark.usefixtures("untrained")
def test_links_in_place_of_a_run_folder_and_its_store_are_followed(source: Path, tmp_path: Path) -> None:
    """A small disk holds the links, a large one the files; what lies behind a link is not removed either."""
    (tmp_path / "run").symlink_to("large/run")
    with pytest.raises(ValueError, match="33"):
        train_small(source, tmp_path / "run", "y", settings={"model.dim": 33})
    assert sorted(contents(tmp_path)) == ["a.csv", "run"]
    (tmp_path / "large" / "run").mkdir(parents=True)
    (tmp_path / "large" / "store").mkdir()
    (tmp_path / "large" / "run" / "store").symlink_to("../store")
    with pytest.raises(ValueError, match="33"):
        train_small(source, tmp_path / "run", "y", settings={"model.dim": 33})
    assert (tmp_path / "large" / "store" / "manifest.json").is_file()
    with pytest.raises(AssertionError, match="a training began"):
        train_small(source, tmp_path / "run", "y")
    assert (tmp_path / "large" / "run" / "run.json").is_file()


def test_a_pipe_is_no_run_folder(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run")
    with pytest.raises(ValueError, match="run is a file; expected a folder for the run"):
        train_small(source, tmp_path / "run", "y")


def test_info_counts_models_and_epochs_of_a_stopped_ensemble(tmp_path: Path) -> None:
    run, second = tmp_path / "run", tmp_path / "run" / "members" / "model-1"
    shutil.copytree(FIXTURES / "format_2" / "ensemble", run)
    ending = "; go on from the last checkpoint with the same command and --resume"
    (run / "summary.json").unlink()
    (second / "summary.json").unlink()
    lines = (second / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (second / "metrics.jsonl").write_bytes(b"".join(lines[:1]))
    epochs = json.loads((run / "run.json").read_bytes())["training"]["epochs"]
    assert info(run)[-1] == f"unfinished 1 of 2 models are trained, 1 of {epochs} epochs of model-1{ending}"
    assert info(second)[-1] == f"unfinished 1 of {epochs} epochs are done{ending}"
    shutil.rmtree(second)
    assert info(run)[-1] == f"unfinished 1 of 2 models are trained{ending}"
