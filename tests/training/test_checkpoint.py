"""Checkpoints: whole or refused, and never anything that runs."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.training.checkpoint import Checkpoint, read_checkpoint, read_newest, write_checkpoint, write_last

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
    for epoch in (1, 2, 3):
        write_last(tmp_path, Checkpoint({"a": torch.ones(1)}, {"epoch": epoch}))
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


def test_a_checkpoint_that_cannot_be_written_costs_none(tmp_path: Path) -> None:
    write_last(tmp_path, Checkpoint({"a": torch.ones(1)}, {"epoch": 1}))
    with pytest.raises(TypeError):
        write_last(tmp_path, Checkpoint({"a": torch.ones(1)}, {"epoch": object()}))
    newest, problems = read_newest(tmp_path)
    assert newest is not None
    assert newest.state["epoch"] == 1
    assert not problems


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
