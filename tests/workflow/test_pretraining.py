"""From a library of molecules to weights that fine-tuning begins with."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.forced import force
from tests.workflow.small import EXACT
from tokengt import GraphBatch
from tokengt.cli import main
from tokengt.models.tokengt.masking import MaskedAtoms
from tokengt.models.tokengt.model import TokenGT
from tokengt.pretraining import run
from tokengt.pretraining.store import KEYS
from tokengt.training.recorded import RecordedSteps
from tokengt.training.start import Start
from tokengt.workflow.fitting import TrainOptions, finetune
from tokengt.workflow.pretraining import prepare_pretraining, pretrain

_TINY = {
    "model.dim": 16,
    "model.encoder.num_layers": 1,
    "model.encoder.num_heads": 2,
    "model.encoder.mlp_dim": 16,
    "training.batch_size": 8,
    "training.epochs": 3,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty alcohols, amines and rings, with a yes/no label and a number."""
    folder = tmp_path_factory.mktemp("library")
    texts = [f"{'C' * size}{end}" for size in range(2, 12) for end in ("O", "N", "c1ccccc1", "C(=O)O")]
    rows = [f"{text},{place % 2},{len(text)}" for place, text in enumerate(texts)]
    (folder / "library.csv").write_text("smiles,alcohol,length\n" + "\n".join(rows) + "\n")
    (folder / "test.smi").write_text("OCCC.Cl\n[NH3+]CCC\n")
    out = folder / "store"
    prepare_pretraining(folder / "library.csv", out, exclude=folder / "test.smi", workers=1, quiet=True)
    return out


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "run"
    pretrain(store, out, settings=_TINY, device="cpu", quiet=True)
    return out


def test_it_learns_all_objectives_and_says_what_was_left_out(trained: Path) -> None:
    summary = json.loads((trained / run.RUN).read_text())
    assert (summary["molecules"], summary["excluded"], summary["excluded_keys"]) == (38, 2, 2)
    assert set(summary["valid"]) == {"loss", "bits", "descriptors", "numbers", "answers", "masked"}
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["train_loss"] < records[0]["train_loss"]
    card = (trained / run.CARD).read_text()
    assert summary["excluded_sha256"] in card
    assert "| library.csv | 38 | 2 | 0 |" in card
    assert run.is_pretrained(trained)
    assert not (trained / "checkpoints").exists()


def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    store: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    wishes = {"settings": _TINY | {"training.checkpoint_seconds": 0.0}, "device": "cpu", "quiet": True}
    usual = run.write_metrics

    def stop(folder: Path, records: list[dict[str, object]]) -> None:
        usual(folder, records)
        if len(records) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "write_metrics", stop)
    with pytest.raises(KeyboardInterrupt):
        pretrain(store, out, **wishes)  # type: ignore[arg-type]
    monkeypatch.setattr(run, "write_metrics", usual)
    with pytest.raises(ValueError, match="was begun with another seed"):
        pretrain(store, out, seed=1, **wishes)  # type: ignore[arg-type]
    pretrain(store, out, **wishes)  # type: ignore[arg-type]
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name
    # A finished one has nothing left to do.
    assert pretrain(store, out, **wishes)["best_epoch"] == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("tiled", [False, True], ids=["segments", "tiles"])
def test_recorded_steps_are_the_plain_ones(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiled: bool
) -> None:
    """As a GPU records them: batches are filled up with graphs that must count nothing, hidden atoms included."""
    usual = MaskedAtoms.hidden

    def by_place(self: MaskedAtoms, batch: GraphBatch, draw: int = 0) -> Tensor:
        training, self.training = self.training, False
        hidden = usual(self, batch, draw)
        self.training = training
        return hidden

    # Draws of training depend on how many graphs fill up.
    monkeypatch.setattr(MaskedAtoms, "hidden", by_place)
    settings = {**_TINY, **{name: value for name, value in EXACT.items() if name.startswith("model.")}}
    settings |= {"training.precision": "float64", "training.epochs": 2, "training.batch_size": 7}
    wishes = {"settings": settings, "device": "cpu", "quiet": True}
    plain = pretrain(store, tmp_path / "plain", **wishes)  # type: ignore[arg-type]
    force(monkeypatch, tiled=tiled)
    runs: list[int] = []
    steps = RecordedSteps.run
    monkeypatch.setattr(RecordedSteps, "run", lambda *given: runs.append(1) or steps(*given))
    fast = pretrain(store, tmp_path / "fast", **wishes)  # type: ignore[arg-type]
    assert len(runs) == 2
    assert fast["valid"] == pytest.approx(plain["valid"], rel=1e-6)
    ours, theirs = (TokenGT.from_pretrained(tmp_path / name).state_dict() for name in ("fast", "plain"))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-8)


def test_fine_tuning_begins_with_its_weights(trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("smiles,y\n" + "\n".join(f"{'C' * size}O,{size}" for size in range(1, 21)) + "\n")
    start, model = Start.read(trained), TokenGT.from_pretrained(trained)
    assert all(torch.equal(start.weights[name], value) for name, value in model.state_dict().items())
    options = TrainOptions(workers=1, quiet=True)
    tuned = finetune(
        trained, data, tmp_path / "run", target="y", settings={"training.epochs": 1}, device="cpu", options=options
    )
    assert tuned.predict(["CCCO"]).mean.shape == (1, 1)
    torch.manual_seed(0)
    fresh = TokenGT(run.PretrainRequest(settings=_TINY).config).state_dict()
    learned = [name for name, value in fresh.items() if not torch.equal(value, start.weights[name])]
    assert "tokenizer.special_tokens" in learned


def test_a_machine_without_the_keys_trains_from_the_store(store: Path, tmp_path: Path) -> None:
    """Only two files travel; a single objective and no hidden atoms go through the same way."""
    copy = tmp_path / "store"
    copy.mkdir()
    for file in store.iterdir():
        if file.name != KEYS:
            (copy / file.name).write_bytes(file.read_bytes())
    summary = pretrain(
        copy, tmp_path / "run", targets=["fingerprints"], settings=_TINY | {"training.epochs": 1}, quiet=True
    )
    assert set(summary["valid"]) == {"loss", "bits"}
    assert run.is_pretrained(tmp_path / "run")


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"targets": ["mask"]}, "the target 'mask' is unknown, did you mean 'masked'|the target 'mask' is unknown"),
        ({"targets": []}, "there is nothing to learn"),
        ({"preset": "gin"}, "preset 'gin' is a gin; expected a TokenGT"),
        ({"settings": {"dim": 3}}, "setting 'dim' is unknown"),
        ({"exclude": "esol"}, "is a store, which was made with what it leaves out"),
    ],
)
def test_one_sentence_for_what_cannot_be(store: Path, tmp_path: Path, wishes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pretrain(store, tmp_path / "run", quiet=True, **wishes)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_other_files_in_the_folder_are_left_alone(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and holds other files"):
        pretrain(store, tmp_path, settings=_TINY, quiet=True)
    (tmp_path / "none.csv").write_text("smiles\nC1CC\n")
    with pytest.raises(ValueError, match="no molecule is left of"):
        prepare_pretraining(tmp_path / "none.csv", tmp_path / "store", workers=1, quiet=True)


def test_the_command_says_what_it_made(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [text for name, value in _TINY.items() for text in ("--set", f"{name}={value}")]
    arguments = ["pretrain", str(store), "--out", str(tmp_path / "run"), "--targets", "masked", *settings]
    assert main([*arguments, "--weight", "masked=two"]) == 2
    assert main([*arguments, "--minutes", "3"]) == 2
    assert main(["pretrain", str(tmp_path / "none.csv"), "--out", str(tmp_path / "run")]) == 2
    refusals = capsys.readouterr().err
    for sentence in ("expected NAME=VALUE such as masked=0.5", "expected it with --prepare-only", "does not exist"):
        assert sentence in refusals
    assert not (tmp_path / "run").exists()
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "38 molecules, 2 left out as excluded" in said
    assert f"tokengt finetune {tmp_path / 'run'}" in said
