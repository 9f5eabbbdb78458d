"""Checkpoints: whole or refused, and never anything that runs."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.training import checkpoint as checkpoints
from tokengt.training.checkpoint import Checkpoint, CheckpointWriter, read_checkpoint, read_newest, write_checkpoint

EXAMPLE = Checkpoint(
    {
        "model.w": torch.arange(6, dtype=torch.float32).view(2, 3),
        "model.half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "optimizer.0.step": torch.tensor(3.0),
        "optimizer.0.none": torch.zeros(0, 4),
        "best.flag": torch.tensor([True, False]),
        "best.count": torch.tensor(2**40),
    },
    {"epoch": 2, "value": 1 / 3, "records": [{"b": 1, "a": 2}], "nothing": None},
)


def test_everything_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "last.safetensors"
    write_checkpoint(file, EXAMPLE)
    checkpoint = read_checkpoint(file)
    assert checkpoint.state == EXAMPLE.state
    assert checkpoint.tensors.keys() == EXAMPLE.tensors.keys()
    for name, tensor in EXAMPLE.tensors.items():
        assert checkpoint.tensors[name].dtype == tensor.dtype
        assert torch.equal(checkpoint.tensors[name], tensor)
    assert checkpoint.under("optimizer.0").keys() == {"step", "none"}


def test_records_keep_the_order_of_their_fields(tmp_path: Path) -> None:
    """Otherwise the metrics of a resumed run would be written as other bytes."""
    write_checkpoint(tmp_path / "last.safetensors", EXAMPLE)
    assert list(read_checkpoint(tmp_path / "last.safetensors").state["records"][0]) == ["b", "a"]


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    """In every process: the order of a hash table, which is seeded anew each time, must not be seen in the file."""
    code = (
        "import sys, torch; from pathlib import Path; from tokengt.training.checkpoint import *\n"
        "for n in range(8): write_checkpoint(Path(sys.argv[1]) / f'{n}', "
        "Checkpoint({'a': torch.ones(2), 'b': torch.ones(3)}, {'x': 1}))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    write_checkpoint(file, EXAMPLE)
    return file


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_torn_file_is_named(written: Path, share: float) -> None:
    content = written.read_bytes()
    torn = written.with_name("torn.safetensors")
    torn.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"checkpoint .*torn\.safetensors"):
        read_checkpoint(torn)


@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(written: Path, share: float, bit: int) -> None:
    content = bytearray(written.read_bytes())
    content[int(share * len(content))] ^= 1 << bit
    changed = written.with_name("changed.safetensors")
    changed.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint .*changed\.safetensors"):
        read_checkpoint(changed)


def test_every_bit_of_a_small_file_counts(written: Path, tmp_path: Path) -> None:
    """Also those of the header, where a change may still be a file that can be read."""
    content = written.read_bytes()
    changed = tmp_path / "changed.safetensors"
    for place in range(0, len(content), 5):
        changed.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError):
            read_checkpoint(changed)


def test_the_previous_one_is_used_when_the_last_is_torn(tmp_path: Path) -> None:
    assert read_newest(tmp_path) == (None, [])
    writer = CheckpointWriter(tmp_path)
    for epoch in (1, 2, 3):
        writer.put(Checkpoint({"a": torch.ones(1)}, {"epoch": epoch}))
    writer.close()
    newest, problems = read_newest(tmp_path)
    assert newest is not None
    assert newest.state["epoch"] == 3
    assert not problems
    (tmp_path / "last.safetensors").write_bytes(b"")
    newest, problems = read_newest(tmp_path)
    assert newest is not None
    assert newest.state["epoch"] == 2
    assert len(problems) == 1
    assert "last.safetensors" in problems[0]


def test_a_checkpoint_that_cannot_be_written_is_said_and_costs_none(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.put(Checkpoint({"a": torch.ones(1)}, {"epoch": 1}))
    writer.put(Checkpoint({"a": torch.ones(1)}, {"epoch": object()}))
    with pytest.raises(TypeError):
        writer.wait()
    newest, problems = read_newest(tmp_path)
    assert newest is not None
    assert newest.state["epoch"] == 1
    assert not problems
    # A thread that failed once writes the next one.
    writer.put(Checkpoint({"a": torch.ones(1)}, {"epoch": 3}))
    writer.wait()
    assert read_checkpoint(tmp_path / "last.safetensors").state["epoch"] == 3


def test_training_may_change_its_tensors_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is held back until the tensor has other values; the file must have those of the moment of ``put``."""
    changed = threading.Event()
    write = checkpoints.write_checkpoint

    def late(file: Path, checkpoint: Checkpoint) -> None:
        assert changed.wait(10)
        write(file, checkpoint)

    monkeypatch.setattr(checkpoints, "write_checkpoint", late)
    weights = torch.ones(3)
    writer = CheckpointWriter(tmp_path)
    writer.put(Checkpoint({"a": weights}, {}))
    assert writer.busy
    weights.zero_()
    changed.set()
    writer.wait()
    assert not writer.busy
    assert torch.equal(read_checkpoint(tmp_path / "last.safetensors").tensors["a"], torch.ones(3))


def test_a_tensor_that_is_gone_or_has_another_shape_is_not_taken_from_the_copy_before(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.put(Checkpoint({"a": torch.ones(3), "b": torch.ones(1)}, {}))
    writer.put(Checkpoint({"a": torch.full((2,), 2.0)}, {}))
    writer.wait()
    tensors = read_checkpoint(tmp_path / "last.safetensors").tensors
    assert tensors.keys() == {"a"}
    assert tensors["a"].tolist() == [2.0, 2.0]


def test_what_this_process_wrote_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(checkpoints, "_is_whole", lambda file: bool(read.append(file)) or True)
    first = CheckpointWriter(tmp_path)
    for epoch in range(3):
        first.put(Checkpoint({"a": torch.ones(1)}, {"epoch": epoch}))
    first.close()
    assert not read
    second = CheckpointWriter(tmp_path)
    for epoch in range(3):
        second.put(Checkpoint({"a": torch.ones(1)}, {"epoch": epoch}))
    second.close()
    assert read == [tmp_path / "last.safetensors"]


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "last.safetensors"
    file.write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(file)
    torch.save({"state": Trap(tmp_path / "ran")}, file)
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(file)
    assert not (tmp_path / "ran").exists()


def test_another_safetensors_file_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="has format None; expected 'tokengt-checkpoint-1'"):
        read_checkpoint(tmp_path / "other.safetensors")
