"""Model configs of older versions: what had an effect is kept, the rest is dropped, and today's classes read it."""

import json
from copy import deepcopy
from typing import Any

import pytest

from tokengt.data.datasets import bundled
from tokengt.models.legacy import model_from_v1
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import LaplacianIds, NoIds, OrfIds
from tokengt.models.tokengt.tokens import TokensConfig

ATTENTION = {
    "kind": "softmax",
    "dropout": 0.1,
    "num_features": None,
    "redraw_interval": 100,
    "eps": 0.0001,
    "backend": "auto",
}
OLD: dict[str, Any] = {
    "dim": 32,
    "tokens": {"order": 2, "layout": "undirected", "hyperedges": False, "graph_token": True, "pool_mlp": False},
    "identifiers": {"kind": "laplacian", "dim": 8, "which": "both_ends", "sign_flip": False, "dropout": 0.25},
    "encoder": {"num_layers": 2, "num_heads": 4, "mlp_dim": 64, "attention": ATTENTION},
    "head": {
        "level": "graph",
        "out_dim": 3,
        "readout": "sum",
        "mlp": False,
        "symmetric": True,
        "hidden": [],
        "activation": "gelu",
    },
}


def old(part: str, **changes: Any) -> dict[str, Any]:
    """The old config with some fields of one part changed."""
    data = deepcopy(OLD)
    data[part] |= changes
    return data


def test_what_did_something_is_kept() -> None:
    before = deepcopy(OLD)
    new = model_from_v1(OLD)
    assert before == OLD
    assert new["kind"] == "tokengt"
    assert new["identifiers"] == OLD["identifiers"]
    assert new["encoder"] == OLD["encoder"] | {"attention": {"kind": "softmax", "dropout": 0.1, "backend": "auto"}}
    config = TokenGTConfig.from_dict(new)
    assert (config.dim, config.encoder.num_layers) == (32, 2)
    assert config.identifiers == LaplacianIds(8, "both_ends", False, 0.25)
    assert config.head == HeadConfig(out_dim=3, readout="sum")
    assert config.tokens == TokensConfig(layout="undirected")


@pytest.mark.parametrize(("kind", "expected"), [("orf", {"kind": "orf", "dim": 8}), ("none", {"kind": "none"})])
def test_laplacian_fields_of_other_identifiers_are_dropped(kind: str, expected: dict[str, Any]) -> None:
    new = model_from_v1(old("identifiers", kind=kind))
    assert new["identifiers"] == expected
    assert TokenGTConfig.from_dict(new).identifiers == (NoIds() if kind == "none" else OrfIds(8))


def test_fields_of_the_other_attention_are_dropped() -> None:
    new = model_from_v1(old("encoder", attention=ATTENTION | {"kind": "favor", "num_features": 7}))
    assert new["encoder"]["attention"] == {
        "kind": "favor",
        "num_features": 7,
        "redraw_interval": 100,
        "eps": 0.0001,
        "backend": "auto",
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"level": "node", "symmetric": False, "activation": "relu"}, HeadConfig("node", 3)),
        ({"level": "link", "symmetric": False}, HeadConfig("link", 3, symmetric=False)),
        ({"hidden": [4], "activation": "relu"}, HeadConfig("graph", 3, "sum", hidden=(4,), activation="relu")),
    ],
)
def test_a_head_keeps_what_its_level_reads(changes: dict[str, Any], expected: HeadConfig) -> None:
    assert TokenGTConfig.from_dict(model_from_v1(old("head", **changes))).head == expected


@pytest.mark.parametrize(
    ("layout", "kind", "kept"),
    [("directed", "laplacian", False), ("undirected", "laplacian", True), ("undirected", "orf_first_order", False)],
)
def test_how_identifiers_are_pooled_is_kept_where_they_are(layout: str, kind: str, kept: bool) -> None:
    data = old("tokens", layout=layout, pool_mlp=True)
    data["identifiers"]["kind"] = kind
    assert ("pool_mlp" in model_from_v1(data)["tokens"]) == kept


def test_what_an_old_file_leaves_out_has_its_default() -> None:
    """Files of versions before a field existed have no such field."""
    assert TokenGTConfig.from_dict(model_from_v1({"dim": 8})) == TokenGTConfig(dim=8)
    assert TokenGTConfig.from_dict(model_from_v1({"encoder": {}, "identifiers": {}})) == TokenGTConfig()


@pytest.mark.parametrize("part", ["tokens", "identifiers", "encoder", "head"])
def test_what_is_no_config_is_named_by_the_reader(part: str) -> None:
    with pytest.raises(ValueError, match=f"config.{part} is 3"):
        TokenGTConfig.from_dict(model_from_v1(OLD | {part: 3}))


def test_the_config_of_the_pretrained_weights_that_come_with_the_package_reads() -> None:
    description = json.loads((bundled("small-pretrained") / "config.json").read_text())["model"]
    config = TokenGTConfig.from_dict(description if "kind" in description else model_from_v1(description))
    assert config.identifiers == LaplacianIds(16, dropout=0.1)
    assert config.dim == 96
