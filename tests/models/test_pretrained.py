"""A saved model on disk: whatever decides its predictions is as it was written, or is refused in one sentence."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workflow.small import resealed
from tokengt import EncoderConfig, Graph, TokenGT, TokenGTConfig
from tokengt.models.kinds import load_model
from tokengt.models.pretrained import CONFIG, WEIGHTS, read_saved

FORMAT_2 = Path(__file__).parents[1] / "fixtures" / "format_2"
TRIANGLE = Graph(None, torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]]), num_nodes=3)


def small_model() -> TokenGT:
    torch.manual_seed(0)
    return TokenGT(TokenGTConfig(dim=16, encoder=EncoderConfig(num_layers=1, num_heads=4, mlp_dim=8))).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_an_edited_setting_that_fits_the_weights_is_noticed(saved: Path) -> None:
    """Two heads instead of four have the same weights and give other predictions."""
    data = json.loads((saved / CONFIG).read_text())
    data["model"]["encoder"]["num_heads"] = 2
    (saved / CONFIG).write_text(json.dumps(data))
    for read in (load_model, TokenGT.from_pretrained):
        with pytest.raises(ValueError, match=r"config\.json does not match its checksum"):
            read(saved)
    data["format"] = "tokengt-model-2"
    (saved / CONFIG).write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"config\.json\.run is unknown|config\.json\.checksum is unknown"):
        load_model(saved)


def test_flipped_bits_are_noticed(saved: Path) -> None:
    """One bit of some bytes, spread over the file."""
    for name, step in ((CONFIG, 11), (WEIGHTS, 1997)):
        whole = (saved / name).read_bytes()
        for place in range(0, len(whole), step):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << place % 8
            (saved / name).write_bytes(flipped)
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                read_saved(saved) if name == CONFIG else load_model(saved)
        (saved / name).write_bytes(whole)
    assert isinstance(load_model(saved), TokenGT)


def test_a_folder_may_move_and_hold_files_of_the_users_own(saved: Path) -> None:
    moved = saved.rename(saved.with_name("elsewhere"))
    (moved / "notes.txt").write_text("mine")
    assert torch.equal(load_model(moved)(TRIANGLE), small_model()(TRIANGLE))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf")):
        model = small_model()
        with torch.no_grad():
            next(iter(model.head.parameters())).view(-1)[3] = value
        model.save_pretrained(tmp_path / str(value))
        with pytest.raises(
            ValueError, match=r"model\.safetensors holds infinite or undefined numbers in head\..*lower"
        ):
            load_model(tmp_path / str(value))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda model: model.update(dim=10**9), r"model\.dim is 1000000000"),
        (lambda model: model["encoder"].update(num_layers=10**6), r"model\.encoder\.num_layers is 1000000"),
        (lambda model: model.update(dim=10**400), r"dim is 1000.*64 bits"),
        (lambda model: model.update(dim=20_000), r"does not describe the weights beside it \(.* expected \["),
        (lambda model: model.update(dim=True), r"dim is True; expected a whole number"),
        (lambda model: model.update(encoder=[]), r"encoder is \[\]; expected the settings"),
        (lambda model: model["encoder"].update(drop_path="0"), r"drop_path is '0'; expected a number"),
        (lambda model: model["encoder"].update(drop_path=float("nan")), r"drop_path is nan; expected a number"),
        (lambda model: model["encoder"].update(drop_path=10**400), r"drop_path is 1000.*expected a number"),
    ],
)
def test_sizes_and_types_are_checked_before_anything_is_built(saved: Path, edit: Any, sentence: str) -> None:
    with resealed(saved / CONFIG) as data:
        edit(data["model"])
    begun = time.monotonic()
    for read in (load_model, TokenGT.from_pretrained):
        with pytest.raises(ValueError, match=sentence):
            read(saved)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("content", ["[" * 100_000, "3", "[]", "\ufeff{", '{"format": ["tokengt-model-3"]}', "{}"])
def test_what_is_no_config_is_one_sentence(saved: Path, content: str) -> None:
    (saved / CONFIG).write_text(content)
    with pytest.raises(ValueError, match=r"config\.json (is not valid JSON|holds|has format)") as error:
        load_model(saved)
    assert len(str(error.value)) < 400


def test_a_model_of_format_2_opens_unchecked() -> None:
    assert read_saved(FORMAT_2 / "alone").run is None
    assert isinstance(load_model(FORMAT_2 / "alone"), TokenGT)
