"""Sizes that no machine has are one sentence at once, before anything is built."""

import time
from typing import Any

import pytest
import torch

from tokengt.config import override
from tokengt.models.contract import ModelConfig, check_sizes
from tokengt.models.own import OwnConfig, as_model
from tokengt.models.two_layers import MlpConfig
from tokengt.presets import PRESETS, small
from tokengt.training.config import TrainingConfig
from tokengt.training.request import TrainRequest

HUGE = 10**9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dim": HUGE}, "model.dim is 1000000000; expected at most 1,048,576"),
        ({"encoder.num_layers": 10**6}, "model.encoder.num_layers is 1000000; expected at most 1,000"),
        ({"encoder.num_heads": HUGE}, "model.encoder.num_heads is 1000000000"),
        ({"encoder.head_dim": HUGE}, "model.encoder.head_dim is 1000000000"),
        ({"encoder.mlp_dim": HUGE}, "model.encoder.mlp_dim is 1000000000"),
        ({"identifiers.dim": HUGE}, "model.identifiers.dim is 1000000000"),
        ({"head.hidden": (4, HUGE)}, "model.head.hidden is 1000000000"),
        ({"head.out_dim": HUGE}, "model.head.out_dim is 1000000000"),
        ({"tokens.order": 50, "tokens.layout": "directed"}, "model.tokens.order is 50; expected at most 10"),
        ({"tokens.node_features.categories": (HUGE,)}, "the model would have 96,[0-9,]+ parameters"),
        ({"dim": 2**20}, "the model would have [0-9,]+ parameters; expected at most"),
        (
            {"dim": 2**20, "encoder.num_heads": 2**20, "encoder.head_dim": 2**20, "encoder.mlp_dim": 2**20},
            "the model would have more parameters; expected at most",
        ),
    ],
)
def test_a_model_that_fits_nowhere_is_refused_at_once(settings: dict[str, Any], sentence: str) -> None:
    config = override(small(), settings, "model")
    start = time.monotonic()
    with pytest.raises(ValueError, match=sentence):
        check_sizes(config)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("config", [*(preset() for preset in PRESETS.values()), MlpConfig()])
def test_models_of_every_preset_are_let_through(config: ModelConfig) -> None:
    check_sizes(config)


def test_a_large_module_of_ones_own_is_no_setting() -> None:
    config = as_model(torch.nn.Linear(2000, 2000)).config
    assert isinstance(config, OwnConfig)
    assert config.parameters > 2**20
    check_sizes(config, counted=False)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"model.dim": HUGE}, "model.dim is 1000000000"),
        ({"model.encoder.num_layers": "1000000"}, "model.encoder.num_layers is 1000000"),
        ({"training.epochs": 10**30}, "training.epochs is 10+; expected a whole number of at most 64 bits"),
        ({"training.accumulate": HUGE}, "accumulate is 1000000000; expected 1 to 10,000"),
        ({"training.batch_size": 10**30}, "training.batch_size is 10+; expected a whole number of at most 64 bits"),
    ],
)
def test_it_is_said_before_any_data_is_read(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainRequest(settings=setting)
    with pytest.raises(ValueError, match="ensemble is 100000000"):
        TrainRequest(ensemble=100000000)
    assert TrainingConfig(epochs=1000).epochs == 1000
