"""Trains by two processes, plainly and with recorded steps, and writes both: ``test_recorded.py`` runs it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
import torch

from tests.training.forced import force
from tests.training.test_loop import _of_the_model, parts_of, solubility
from tests.training.test_recorded import EXACT, RECIPE, with_facts
from tokengt import TokenGT
from tokengt.config import override
from tokengt.presets import small
from tokengt.training.loop import Trainer
from tokengt.training.processes import DeviceConfig, make_fabric


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parts, task, store = with_facts(parts_of(24, solubility(24), "regression", first=("C", "O")))
    fabric = make_fabric(DeviceConfig("cpu"), "float64")
    config = RECIPE.__class__(**{**vars(RECIPE), "accumulate": 2, "ema": 0.9})
    for name in ("plain", "recorded"):
        if name == "recorded":
            force(pytest.MonkeyPatch(), tiled=True)
        torch.manual_seed(1)
        model = TokenGT(override(small().fit(store, 1), _of_the_model(EXACT), "model"))
        trainer = Trainer(fabric, model, parts, task, config)
        assert (trainer.recorded is not None) == (name == "recorded")
        records = trainer.run().records
        losses = [record[key] for record in records for key in ("train_loss", "valid_loss")]
        flat = torch.cat([tensor.double().flatten() for tensor in trainer.model.state_dict().values()])
        if fabric.is_global_zero:
            (folder / f"{name}.json").write_text(json.dumps({"losses": losses, "weights": flat.tolist()}))


main(Path(sys.argv[1]))
