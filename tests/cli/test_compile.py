"""``training.compile`` through the command: it trains, goes on after a stop, and what it keeps is an ordinary model."""

import json
from pathlib import Path

import pytest

from tests.cli.command import settings, succeeded, tokengt
from tokengt.data.datasets import bundled

SMALL = {"model.dim": 16, "model.encoder.num_layers": 2, "model.encoder.mlp_dim": 16, "training.epochs": 2}


@pytest.mark.slow
def test_a_compiled_run_is_as_any_other(tmp_path: Path) -> None:
    molecules = tmp_path / "few.csv"
    rows = ["smiles,y", *(f"{'C' * (1 + place % 7)}O,{place % 7}" for place in range(40))]
    molecules.write_text("\n".join(rows) + "\n")
    losses = {}
    for name, compiled in (("plain", "false"), ("compiled", "true")):
        wishes = {**SMALL, "training.compile": compiled, "training.ema": 0.9, "model.encoder.mlp_dropout": 0}
        wishes |= {"model.encoder.attention.dropout": 0, "model.encoder.drop_path": 0, "training.precision": "float32"}
        arguments = ("train", molecules, "--target", "y", "--preset", "small", "--out", tmp_path / name)
        succeeded(tokengt(*arguments, *settings(wishes)))
        succeeded(tokengt(*arguments, *settings(wishes), "--resume"))
        succeeded(tokengt("predict", tmp_path / name, bundled("new_molecules.csv"), "--out", tmp_path / f"{name}.csv"))
        records = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses[name] = [json.loads(record)["train_loss"] for record in records]
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-4)
