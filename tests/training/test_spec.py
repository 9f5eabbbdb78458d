"""What makes two runs the same, and what of a run is as it was written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workflow.small import resealed
from tokengt.config import from_dict, to_dict
from tokengt.data.manifest import Source
from tokengt.presets import small
from tokengt.training.config import TrainingConfig
from tokengt.training.spec import Descriptors, RunSpec, read_members, read_run, write_run
from tokengt.training.tasks import Task

FORMAT_2 = Path(__file__).parents[1] / "fixtures" / "format_2"


def test_how_a_run_is_saved_and_launched_does_not_make_it_another() -> None:
    source = Source("molecules.csv", "0", 1)
    task = Task("regression", ("y",))
    spec = RunSpec(small(), TrainingConfig(epochs=3), task, "graph", 0, "random", "1", source, "2")
    for change in ({"checkpoint_seconds": 5.0}, {"cuda_graphs": False}):
        other = replace(spec, training=replace(spec.training, **change))
        assert other.fingerprint == spec.fingerprint
        assert not spec.differences(other)
    other = replace(spec, training=replace(spec.training, compile=True))
    assert other.fingerprint != spec.fingerprint
    assert other.differences(spec) == ["training.compile is True, not False"]


def upgraded(folder: Path, name: str = "ensemble") -> Path:
    """A run of format 2 as one that goes on is written: in today's format."""
    shutil.copytree(FORMAT_2 / name, folder)
    spec, members = read_members(folder)
    write_run(folder, spec, [member for _, member in members] if spec.members else ())
    for home, member in members:
        write_run(home, member)
    return folder


def test_a_run_that_goes_on_takes_the_new_format_and_its_weights_stay(tmp_path: Path) -> None:
    run = upgraded(tmp_path / "run")
    assert json.loads((run / "run.json").read_text())["format"] == "tokengt-run-3"
    assert read_members(run)[0] == read_run(FORMAT_2 / "ensemble")
    for home, spec in read_members(run)[1]:
        old = FORMAT_2 / "ensemble" / "members" / home.name
        assert spec == read_run(old)
        config, before = (json.loads((folder / "config.json").read_text()) for folder in (home, old))
        assert config["sha256"] == before["sha256"]
        assert config["model"] == before["model"]


@pytest.mark.parametrize("name", ["run.json", "config.json", "members/model-1/run.json", "members/model-1/config.json"])
def test_flipped_bits_of_a_run_are_noticed(tmp_path: Path, name: str) -> None:
    """One bit of some bytes, spread over the file: the others would tell no more, and take longer."""
    file = upgraded(tmp_path / "run") / name
    whole = file.read_bytes()
    for place in range(0, len(whole), 31):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match=file.name.replace(".", r"\.")):
            read_members(file.parent)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data["task"].update(scale=[2.0]),
        lambda data: data["molecules"].update(salts="largest"),
        lambda data: data["descriptors"].update(mean=[0.0]),
        lambda data: data.update(members=["model-0"]),
    ],
)
def test_an_edited_run_is_noticed(tmp_path: Path, edit: Any) -> None:
    run = upgraded(tmp_path / "run")
    for file in (run / "run.json", run / "members" / "model-0" / "run.json"):
        whole = file.read_bytes()
        data = json.loads(whole)
        edit(data)
        file.write_text(json.dumps(data))
        with pytest.raises(ValueError, match=r"run\.json does not match its checksum: it is torn or was changed"):
            read_members(run)
        file.write_bytes(whole)


def test_files_of_another_run_are_noticed(tmp_path: Path) -> None:
    """Each of them is as it was written, but they do not belong together."""
    run = upgraded(tmp_path / "run")
    first, second = run / "members" / "model-0", run / "members" / "model-1"
    for name in ("config.json", "model.safetensors"):
        shutil.copy(second / name, first / name)
    with pytest.raises(ValueError, match=r"model-0/config\.json belongs to another run than run\.json beside it"):
        read_members(run)
    shutil.rmtree(first)
    shutil.copytree(second, first)
    with pytest.raises(ValueError, match=r"model-0 holds a model of another run than .*run/run\.json describes"):
        read_members(run)
    shutil.rmtree(first)
    shutil.copytree(FORMAT_2 / "ensemble" / "members" / "model-0", first)
    with pytest.raises(ValueError, match=r"model-0 holds a model of another run"):
        read_members(run)


@pytest.mark.parametrize(
    "members",
    [["../alone"], ["/tmp"], ["a/b"], ["a\\b"], [".."], ["."], [""], ["a\0b"], ["m", "m"], [[1]], [1], "m", 7],
)
def test_members_are_names_of_folders_inside_the_run(tmp_path: Path, members: Any) -> None:
    """In an old run, which has no checksum, and in a new one that is sealed as ours are."""
    for folder, edited in ((tmp_path / "old", False), (tmp_path / "new", True)):
        if edited:
            with resealed(upgraded(folder) / "run.json") as data:
                data["members"] = members
        else:
            shutil.copytree(FORMAT_2 / "ensemble", folder)
            data = json.loads((folder / "run.json").read_text()) | {"members": members}
            (folder / "run.json").write_text(json.dumps(data))
        with pytest.raises(ValueError, match="members"):
            read_members(folder)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda data: data.update(seed="0"), r"run\.json\.seed is '0'; expected a whole number"),
        (lambda data: data.update(seed=10**300), r"run\.json\.seed is 1000"),
        (lambda data: data.update(task=[]), r"run\.json\.task is \[\]"),
        (lambda data: data["task"].update(scale=["1"]), r"run\.json\.task\.scale\[0\] is '1'; expected a number"),
        (lambda data: data["task"].update(scale=[float("nan")]), r"run\.json\.task\.scale\[0\] is nan"),
        (lambda data: data["task"].update(scale=[10**400]), r"run\.json\.task\.scale\[0\] is 1000"),
        (lambda data: data["task"].update(names=None), r"run\.json\.task\.names is None; expected a list"),
        (lambda data: data["descriptors"].update(scale=[0.0]), "scale above 0"),
        (lambda data: data["descriptors"].update(scale=[]), "need 1 numbers each"),
        (lambda data: data.update(source={"name": "a", "sha256": "b", "rows": 1e9}), r"run\.json\.source\.rows is"),
        (lambda data: data.update(molecules=3), r"run\.json\.molecules is 3"),
        (lambda data: data.update(text_column={}), r"run\.json\.text_column is \{\}"),
        (lambda data: data.update(model={"kind": ["tokengt"]}), r"run\.json names a model of kind \['tokengt'\]"),
        (lambda data: data.update(checksum="0"), r"run\.json\.checksum is unknown"),
    ],
)
def test_wrong_types_name_the_file_and_the_field(tmp_path: Path, edit: Any, sentence: str) -> None:
    shutil.copytree(FORMAT_2 / "ensemble", tmp_path / "run")
    data = json.loads((tmp_path / "run" / "run.json").read_text())
    edit(data)
    (tmp_path / "run" / "run.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=sentence):
        read_run(tmp_path / "run")


def test_a_run_of_before_metric_and_loss_could_be_chosen_is_the_same_run() -> None:
    """The fingerprint was written down by the version before; a run that it began can go on."""
    task = Task("regression", ("y",))
    spec = RunSpec(
        small(), TrainingConfig(epochs=3), task, "graph", 0, "random", "1", Source("molecules.csv", "0", 1), "2"
    )
    assert spec.fingerprint == "38792bac706855d52611532ddb7205e5010f695939c618813af1db67c3aa102b"
    content = to_dict(spec)
    for name in ("metric", "loss"):
        del content["task"][name]
        content["training"].pop(name, None)  # At its default it is not written at all.
    assert from_dict(RunSpec, content) == spec
    other = replace(spec, training=replace(spec.training, metric="mae"), task=replace(task, metric="mae"))
    assert other.differences(spec) == ["training.metric is mae, not None"]


def test_a_descriptor_that_dwarfs_all_others_is_named() -> None:
    """One number of 1e30 makes all others alike once they are scaled: nothing could be learned from them."""
    values = torch.linspace(0, 1, 200)[:, None].repeat(1, 2)
    values[7, 1] = 1e30
    descriptors = Descriptors.fit(("d1", "d2"), values)
    (sentence,) = descriptors.far_off(values)
    assert sentence.startswith("Descriptor 'd2' is 1e+30 in some row and between 0.05")
    # Ordinary outliers, a rare yes, a constant column and a single row are nobody's mistake.
    rare = torch.zeros(200, 2)
    rare[3] = 1.0
    assert descriptors.far_off(rare) == ()
    values[7, 1] = 50.0
    assert Descriptors.fit(("d1", "d2"), values).far_off(values) == ()
    assert Descriptors.fit(("d1", "d2"), torch.ones(9, 2)).far_off(torch.ones(9, 2)) == ()
    assert descriptors.far_off(values[:1]) == ()
