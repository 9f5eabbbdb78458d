"""``tokengt bench`` as a person runs it."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.cli import command
from tests.cli.command import here, refused, succeeded, tokengt
from tokengt.cli import main
from tokengt.data.datasets import bundled

TINY = (
    "--device",
    "cpu",
    "--batch",
    "4",
    "--steps",
    "1",
    "--rounds",
    "1",
    "--layers",
    "1",
    "--dim",
    "16",
    "--heads",
    "2",
)


@pytest.mark.slow
def test_a_table_and_rows_that_are_kept(tmp_path: Path) -> None:
    done = succeeded(tokengt("bench", *TINY, "--out", tmp_path))
    printed = done.stdout.splitlines()
    assert [line.split()[:2] for line in printed[4:8]] == [
        *(["infer", "tokengt"], ["infer", "padded"], ["train", "tokengt"], ["train", "padded"])
    ]
    assert printed[-1] == f"rows kept in {tmp_path / 'bench-pcqm4mv2-cpu.json'}"
    assert len(json.loads((tmp_path / "bench-pcqm4mv2-cpu.json").read_text())) == 4
    assert all(line.startswith("bench: ") for line in done.stderr.splitlines())


def test_json_prints_the_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    arguments = ["--phase", "infer", "--layout", "undirected", "--shape", "zinc", "--json", "--out", str(tmp_path)]
    assert main(["bench", *TINY, *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["shape"], row["layout"], row["phase"]) for row in printed] == [("zinc", "undirected", "infer")] * 2
    assert printed == json.loads((tmp_path / "bench-zinc-cpu.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dim", "30", "--heads", "4"], "dim 30 is no multiple of num_heads 4; set head_dim"),
        (["--scale", "0.5"], "scale is 0.5 with shape 'pcqm4mv2'; expected 1, or for 'physics' above 0 up to 1"),
        (["--batch", "-1"], "batch is -1; expected at least 0"),
        (["--dropout", "1.5"], "attention dropout is 1.5; expected 0 or more and below 1"),
        (["--layers", "-2"], "layers is -2; expected at least 1"),
        (["--layers", "0"], "layers is 0; expected at least 1"),
        (["--out", __file__], f"{__file__} cannot be written to; give another --out"),
        (["--preset", "gin"], "--preset is 'gin'; expected one of auto, small, regression, or --real DATA"),
        (
            ["--attention", "favor", "--backend", "varlen"],
            "backend 'varlen' is one of softmax attention; FAVOR+ has none of that name",
        ),
        (["--epochs", "3"], "--epochs has no effect here; it is for --real DATA"),
        (["--set", "training.ema=0.9"], "--set has no effect here; it is for --real DATA"),
        (
            ["--real", "x.csv", "--layers", "3"],
            "--layers has no effect here; with --real the data and --set NAME=VALUE say that",
        ),
        (
            ["--real", "x.csv", "--shape", "zinc"],
            "--shape has no effect here; with --real the data and --set NAME=VALUE say that",
        ),
        (["--real", "x.csv", "--epochs", "0"], "epochs is 0; expected at least 1"),
        (["--real", "x.csv", "--set", "a"], "--set 'a' has no '='; expected NAME=VALUE such as training.epochs=20"),
    ],
)
def test_a_wish_that_cannot_be_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert main(["bench", "--device", "cpu", "--out", str(tmp_path / "new"), *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"tokengt: {sentence}"
    assert not (tmp_path / "new").exists()


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "tokengt: device is 'cuda' but torch finds no GPU; use the device cpu\n"


@pytest.mark.slow
def test_real_commands_on_a_persons_file(tmp_path: Path) -> None:
    """The whole of it: train and predict run as processes, and their rates stand beside the bench's own."""
    esol = bundled("esol.csv.xz")
    options = ("--target", "logSolubility", "--epochs", "2", "--batch-size", "64", "--set", "model.dim=16")
    options += ("--preset", "small", "--steps", "2", "--rounds", "1", "--device", "cpu", "--out", tmp_path)
    done = succeeded(tokengt("bench", "--real", esol, *options))
    train, predict = json.loads((tmp_path / "bench-esol-cpu.json").read_text())
    assert (train["phase"], predict["phase"]) == ("real-train", "real-predict")
    assert (train["graphs"], predict["graphs"], train["epochs"], train["batch"]) == (902, 1128, 2, 64)
    assert train["options"] == "--preset small --batch-size 64 --set model.dim=16"
    assert "4 layers x 16" in train["model"]
    assert train["graphs_per_s"] == pytest.approx(902 / train["epoch_seconds"])
    assert predict["graphs_per_s"] == pytest.approx(1128 / predict["seconds"])
    parts = train["first_epoch_seconds"] + train["epoch_seconds"] + train["end_seconds"]
    assert parts == pytest.approx(train["seconds"], abs=0.1)
    assert 0 < train["start_seconds"] < train["first_epoch_seconds"] < train["seconds"]
    for row in (train, predict):
        assert row["share_of_bench"] == pytest.approx(row["graphs_per_s"] / row["bench_graphs_per_s"])
        assert 0 < row["peak_share"] < 1
        assert row["memory_gib"] is row["ratio_to_padded"] is None
        assert 0.05 < row["host_gib"] < 8
    printed = done.stdout.splitlines()
    assert [line.split()[0] for line in printed[4:6]] == ["real-train", "real-predict"]
    assert printed[-1] == f"rows kept in {tmp_path / 'bench-esol-cpu.json'}"
    assert all(line.startswith("bench: ") for line in done.stderr.splitlines())
    assert any(line.startswith("bench: train: training: epoch 1/2") for line in done.stderr.splitlines())


def test_real_data_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    sentence = refused(here("bench", "--real", tmp_path / "x.csv", "--device", "cpu", "--out", tmp_path / "new"))
    assert sentence.startswith(f"tokengt: tokengt train: {tmp_path / 'x.csv'} does not exist; expected a file")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_several_shapes_one_after_the_other(tmp_path: Path) -> None:
    """Peptides with FAVOR+, and one large graph with softmax: each the other's usual attention."""
    shapes = ("--shape", "zinc", "peptides", "--attention", "favor", "--phase", "train", "--json")
    done = succeeded(here("bench", *TINY, *shapes, "--out", tmp_path))
    rows = json.loads(done.stdout)
    assert [(row["shape"], row["attention"]) for row in rows] == [("zinc", "favor")] * 2 + [("peptides", "favor")] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"bench-zinc-cpu.json", "bench-peptides-cpu.json"}


@pytest.mark.slow
def test_a_store_where_no_rdkit_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU often has the store alone."""
    succeeded(here("prepare", bundled("esol.csv.xz"), "--target", "logSolubility", "--out", tmp_path / "esol"))
    (tmp_path / "rdkit").mkdir()
    (tmp_path / "rdkit" / "__init__.py").write_text('raise ImportError("no RDKit here")\n')
    monkeypatch.setitem(command._ENVIRONMENT, "PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    options = ("--preset", "gin", "--epochs", "2", "--phase", "train", "--rounds", "1", "--device", "cpu")
    rows = tokengt("bench", "--real", tmp_path / "esol", *options, "--json", "--out", tmp_path / "results")
    (row,) = json.loads(succeeded(rows).stdout)
    assert (row["shape"], row["system"], row["phase"], row["graphs"]) == ("esol", "gin", "real-train", 902)
    assert row["layout"] is row["dropout"] is row["peak_share"] is None
