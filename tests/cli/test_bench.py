"""``tokengt bench`` as a person runs it."""

import json
from pathlib import Path

import pytest
import torch

from tests.cli.command import succeeded, tokengt
from tokengt.cli import main

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
