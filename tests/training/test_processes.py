"""Any number of processes, and any way to cut a step, takes the same steps."""

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.command import settings, succeeded, tokengt, torchrun
from tests.workflow.small import EXACT, QUIET, molecules, train_small, write_csv
from tokengt.training.processes import Alone, DeviceConfig, deterministic, set_up, without_precision_advice

# 50 training molecules in steps of 31 and 19: neither is a multiple of two processes.
STEPS = {**EXACT, "training.epochs": 11, "training.batch_size": 31}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets with gaps, rows without any label, and single atoms, which have no edges."""
    smiles, values = molecules(58)
    texts = [*smiles, "C", "O", "N", "[Na+]"]
    labels = [*values, -0.9, 1.1, 0.4, 2.0]
    rows = (
        (text, "" if place % 5 == 3 else value, "" if place % 7 == 3 else -2 * value)
        for place, (text, value) in enumerate(zip(texts, labels, strict=True))
    )
    return write_csv(tmp_path_factory.mktemp("data") / "data.csv", ("smiles", "y", "z"), rows)


@pytest.fixture(scope="module")
def alone(source: Path) -> Path:
    folder = source.with_name("alone")
    train_small(source, folder, ("y", "z"), settings=STEPS)
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_losses(folder: Path, alone: Path) -> None:
    shared, expected = records(folder), records(alone)
    assert [record["step"] for record in shared] == [record["step"] for record in expected]
    assert expected[-1]["step"] >= 20
    for name in ("train_loss", "valid_loss"):
        ours, theirs = ([record[name] for record in each] for each in (shared, expected))
        assert ours == pytest.approx(theirs, abs=1e-10, rel=0)
    assert len({record["train_loss"] for record in expected}) == len(expected)


def train_with(processes: int, source: Path, folder: Path, *more: str, recipe: Mapping[str, Any] = STEPS) -> str:
    options = ["--target", "y", "z", "--out", str(folder), "--device", "cpu", "--workers", "1", *settings(recipe)]
    run = tokengt if processes == 1 else lambda *rest: torchrun(processes, *rest)
    return succeeded(run("train", source, *options, *more)).stdout


def test_two_processes_lose_as_one(source: Path, alone: Path) -> None:
    folder = source.with_name("two")
    output = train_with(2, source, folder)
    assert_same_losses(folder, alone)
    assert output.count("open ") == 1  # The second process says nothing.


@pytest.mark.slow
def test_two_processes_that_share_the_weights_lose_as_one(source: Path, alone: Path) -> None:
    folder = source.with_name("shared")
    train_with(2, source, folder, "--strategy", "fsdp", recipe={**STEPS, "training.accumulate": 2})
    assert_same_losses(folder, alone)


@pytest.mark.slow
def test_message_passing_is_trained_by_processes_that_share_its_weights(source: Path) -> None:
    """Its pieces are taken apart again before the loss: nothing may ask for them whole."""
    folder = source.with_name("gin")
    small = {"model.dim": 16, "model.num_layers": 2, "training.epochs": 1}
    train_with(2, source, folder, "--strategy", "fsdp", "--preset", "gin-vn", recipe=small)
    losses = [json.loads(line)["valid_loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 1
    assert losses[0] > 0


@pytest.mark.parametrize("parts", [2, 3])
def test_a_step_in_parts_is_the_same_step(source: Path, alone: Path, parts: int) -> None:
    folder = source.with_name(f"parts-{parts}")
    train_small(source, folder, ("y", "z"), settings={**STEPS, "training.accumulate": parts})
    assert_same_losses(folder, alone)


def test_several_processes_are_not_warned_of_streams_that_cost_them_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch advises on how Lightning wraps a model, which is for neither kind of our steps."""
    said: list[bool] = []
    monkeypatch.setattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", said.append)
    layer = torch.nn.Linear(2, 1)
    assert set_up(Alone("cpu", mixed=False), layer)(torch.ones(3, 2)).shape == (3, 1)
    assert said == []
    from lightning_fabric import Fabric

    assert set_up(Fabric(accelerator="cpu", devices=1), layer)(torch.ones(3, 2)).shape == (3, 1)
    assert said == [False]


@pytest.mark.slow
def test_more_parts_than_molecules_is_the_same_step(source: Path) -> None:
    """Some parts are then empty."""
    recipe = {**EXACT, "training.batch_size": 2, "training.epochs": 1}
    losses = []
    for parts in (1, 5):
        folder = source.with_name(f"few-{parts}")
        train_small(source, folder, ("y", "z"), settings={**recipe, "training.accumulate": parts}, options=QUIET)
        losses.append(records(folder)[0]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-10, rel=0)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="devices is 0; expected at least 1"):
        DeviceConfig("cpu", 0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            DeviceConfig("cuda")


def test_deterministic_algorithms_only_for_the_time_of_the_block() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with suppress(KeyError), deterministic(torch.device("cpu")):
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(torch.device("cuda")):
        assert not torch.are_deterministic_algorithms_enabled()


def _advise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Lightning and Inductor say on a machine with a recent GPU: the first by its own code, the other as written
    in its source, because importing it takes seconds."""
    from lightning_fabric.accelerators import cuda

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    cuda._check_cuda_matmul_precision.__wrapped__(torch.device("cuda", 0))
    source = (Path(torch.__file__).parent / "_inductor" / "compile_fx.py").read_text()
    sentence = source.split("def _warn_tf32_disabled")[1].split('warnings.warn(\n            "')[1].split('"\n')[0]
    assert sentence.startswith("TensorFloat32 tensor cores")
    warnings.warn(sentence, UserWarning, stacklevel=2)


def test_advice_on_float32_is_left_out_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lightning_fabric.utilities.rank_zero import rank_zero_info

    caplog.set_level("INFO")
    with pytest.warns(UserWarning, match="TensorFloat32"):
        _advise(monkeypatch)
    assert "that has Tensor Cores" in caplog.text
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with without_precision_advice():
            _advise(monkeypatch)
            rank_zero_info("something else")
            warnings.warn("something else", UserWarning, stacklevel=1)
        assert [str(each.message) for each in caught] == ["something else"]
        assert [record.getMessage() for record in caplog.records] == ["something else"]
        _advise(monkeypatch)
    assert len(caught) == 2
    assert "that has Tensor Cores" in caplog.text


def test_training_is_without_that_advice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Such as in the first compiled step."""
    from tokengt.training import run

    caplog.set_level("INFO")
    said, train_one = [], run._train_one

    def trained(*arguments: Any) -> Any:
        with monkeypatch.context() as pretended:
            _advise(pretended)
        said.append("step")
        return train_one(*arguments)

    monkeypatch.setattr(run, "_train_one", trained)
    smiles, values = molecules(12)
    data = write_csv(tmp_path / "data.csv", ("smiles", "y"), zip(smiles, values, strict=True))
    train_small(data, tmp_path / "run", "y", settings={"training.epochs": 1})
    assert said == ["step"]
    assert "Tensor Cores" not in caplog.text
