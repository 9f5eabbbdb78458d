"""What a setting cannot be is refused when its config is made, by name: just outside its range, and not at its end."""

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tests.effects import settings, with_inner
from tokengt.models.kinds import KINDS
from tokengt.models.tokengt.guard import Domain
from tokengt.training.config import TrainingConfig

CONFIGS = {TrainingConfig} | {inner for kind in set(KINDS) - {"own"} for inner in with_inner(KINDS[kind])} - {Domain}

COUNT, MORE = ([0, -1], [1]), ([-1], [0])  # Refused, and taken: at least 1, and 0 or more.
SHARE = ([-0.01, 1.0, math.nan], [0.0, 0.99])
RANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "TrainingConfig.epochs": MORE,
    "TrainingConfig.batch_size": COUNT,
    "TrainingConfig.batch_tokens": MORE,
    "TrainingConfig.accumulate": COUNT,
    "TrainingConfig.learning_rate": ([-0.01, math.nan], [0.0]),
    "TrainingConfig.weight_decay": ([-0.01, math.nan], [0.0]),
    "TrainingConfig.beta2": SHARE,
    "TrainingConfig.warmup": SHARE,
    "TrainingConfig.clip": ([-0.01, math.nan], [0.0]),
    "TrainingConfig.ema": SHARE,
    "TrainingConfig.layer_decay": ([0.0, -0.5, 1.01, math.nan], [0.01, 1.0]),
    "TrainingConfig.unfreeze": SHARE,
    "TrainingConfig.quantile": ([0.0, 1.0, -0.1, math.nan], [0.01, 0.99]),
    "TrainingConfig.target_weights": ([(-1.0,), (0.0, 0.0), (math.nan,), (math.inf,)], [(), (0.0, 1.0), (2.5,)]),
    "TrainingConfig.auxiliary_weight": ([-0.01, math.nan], [0.0]),
    "TrainingConfig.patience": MORE,
    "TrainingConfig.minutes": ([-0.01, math.nan], [0.0, math.inf]),
    "TrainingConfig.memory": ([-0.01, math.nan], [0.0, 24.0]),
    "TrainingConfig.checkpoint_seconds": ([], [-1.0, 0.0]),  # Below 0: at every chance.
    "TokenGTConfig.dim": COUNT,
    "TokensConfig.order": COUNT,
    "TokensConfig.feature_dropout": SHARE,
    "FeatureSpec.width": MORE,
    **{f"StructureConfig.{name}": ([-1, 1025], [0, 1024]) for name in ("walks", "eigenpairs")},
    **{f"ProofHeads.{name}": MORE for name in ("layers", "incidence", "neighbours")},
    "StructureConfig.rings": ([-1, 1, 2, 1025], [0, 3, 1024]),
    "ProofHeads.sharpness": ([0.0, -1.0, math.inf, math.nan], [0.01]),
    "LaplacianIds.dropout": SHARE,
    **{f"{kind}.dim": COUNT for kind in ("OrfIds", "LaplacianIds", "NearOrthonormalIds", "RandomIds")},
    **{f"{kind}.dim": COUNT for kind in ("FirstOrderOrfIds", "FirstOrderRandomIds")},
    "EncoderConfig.num_layers": MORE,
    "EncoderConfig.num_heads": COUNT,
    **{f"EncoderConfig.{name}": COUNT for name in ("head_dim", "value_dim", "mlp_dim")},
    **{f"EncoderConfig.{name}": SHARE for name in ("mlp_dropout", "residual_dropout", "input_dropout", "drop_path")},
    "SoftmaxConfig.dropout": SHARE,
    "FavorConfig.num_features": COUNT,
    "FavorConfig.redraw_interval": COUNT,
    "FavorConfig.eps": ([-1e-9], [0.0]),
    "EluConfig.eps": ([-1e-9, math.nan], [0.0]),
    "HeadConfig.out_dim": COUNT,
    "HeadDescriptors.width": COUNT,
    **{f"HeadDescriptors.{name}": SHARE for name in ("feature_dropout", "dropout")},
    **{
        f"{kind}.{name}": COUNT
        for kind in ("GinConfig", "GcnConfig", "GatConfig", "GpsConfig", "GraphormerConfig", "EgtConfig", "GrpeConfig")
        for name in ("dim", "num_layers", "out_dim")
    },
    **{f"{kind}.mlp_dim": COUNT for kind in ("GinConfig", "GcnConfig", "GatConfig", "GraphormerConfig", "GrpeConfig")},
    **{
        f"{kind}.{name}": SHARE
        for kind in ("GinConfig", "GcnConfig", "GatConfig")
        for name in ("dropout", "feature_dropout")
    },
    **{
        f"{kind}.{name}": SHARE
        for kind in ("GpsConfig", "GraphormerConfig", "EgtConfig", "GrpeConfig")
        for name in ("dropout", "attention_dropout")
    },
    **{
        f"{kind}.num_heads": COUNT for kind in ("GatConfig", "GpsConfig", "GraphormerConfig", "EgtConfig", "GrpeConfig")
    },
    **{f"{kind}.max_distance": ([0, -1, 128], [1, 127]) for kind in ("GraphormerConfig", "EgtConfig", "GrpeConfig")},
    **{f"GraphormerConfig.{name}": COUNT for name in ("max_degree", "path_edges")},
    **{f"EgtConfig.{name}": COUNT for name in ("edge_dim", "mlp_ratio", "virtual_nodes")},
    "GpsConfig.walk_steps": COUNT,
    **{f"{kind}.{name}": COUNT for kind in ("MlpConfig", "CliqueGcnConfig") for name in ("dim", "out_dim")},
    **{f"{kind}.{name}": SHARE for kind in ("MlpConfig", "CliqueGcnConfig") for name in ("dropout", "feature_dropout")},
}


def fields_of(*types: Any) -> dict[str, tuple[type, str]]:
    """Fields of these types, or of one of them and None, by ``Config.field``."""
    found = {}
    for config in CONFIGS:
        hints = get_type_hints(config)
        for name in settings(config):
            hint = hints[name]
            options = [hint] if get_origin(hint) is Literal else [*get_args(hint), hint]
            if any(option in types or get_origin(option) in types for option in options):
                found[f"{config.__name__}.{name}"] = (config, name)
    return found


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == set(fields_of(int, float)) - {"FeatureSpec.categories", "HeadConfig.hidden"}


@pytest.mark.parametrize("field", sorted(RANGES))
def test_a_number_is_refused_outside_its_range_and_taken_at_its_ends(field: str) -> None:
    (config, name), (refused, taken) = fields_of(int, float)[field], RANGES[field]
    for value in refused:
        with pytest.raises(ValueError, match="expected") as caught:
            config(**{name: value})
        assert str(value) in str(caught.value)
    for value in taken:
        assert getattr(config(**{name: value}), name) == value


@pytest.mark.parametrize("field", sorted(fields_of(Literal)))
def test_a_word_that_is_not_one_of_its_words_is_refused(field: str) -> None:
    config, name = fields_of(Literal)[field]
    made = config()
    # Put in afterwards and checked again, because the tests' own checks of types would refuse it before ours.
    object.__setattr__(made, name, "nonsense")
    with pytest.raises(ValueError, match=r"'nonsense'.*; expected"):
        made.__post_init__()
