"""Named configurations: a preset is a function that returns a config."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from tokengt.attention import FavorConfig, SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.interop.molecules import MOLECULE_CATEGORIES
from tokengt.models.contract import ModelConfig
from tokengt.models.features import FeatureSpec
from tokengt.models.message_passing.model import GinConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import LaplacianIds, OrfIds
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.models.tokengt.tokens import TokensConfig

Ids = Literal["laplacian", "orf"]


def _check_ids(ids: str) -> None:
    if ids not in ("laplacian", "orf"):
        raise ValueError(f"ids is {ids!r}; expected 'laplacian' or 'orf'")


def molecule_tokens() -> TokensConfig:
    """OGB's 9 atom and 3 bond columns."""
    return TokensConfig(
        node_features=FeatureSpec(categories=MOLECULE_CATEGORIES["node_features"]),
        edge_features=FeatureSpec(categories=MOLECULE_CATEGORIES["edge_features"]),
    )


def regression(ids: Ids = "laplacian") -> TokenGTConfig:
    """The paper's PCQM4Mv2 model: 12 layers x 768, 32 heads of 24, Lap 16 or ORF 64 (Table 2).

    MLP width, input norm and where dropout is applied come from the authors' code, since the paper does not give them.
    """
    _check_ids(ids)
    identifiers = LaplacianIds(dim=16, dropout=0.2) if ids == "laplacian" else OrfIds(dim=64)
    return TokenGTConfig(
        dim=768,
        tokens=molecule_tokens(),
        identifiers=identifiers,
        encoder=EncoderConfig(
            num_layers=12,
            num_heads=32,
            mlp_dim=768,
            attention=SoftmaxConfig(dropout=0.1),
            mlp_dropout=0.1,
            drop_path=0.1,
            input_norm=True,
        ),
    )


def regression_performer() -> TokenGTConfig:
    """TokenGT (Lap) + Performer: FAVOR+ for fine-tuning, without stochastic depth and eigenvector dropout."""
    base = regression("laplacian")
    return replace(
        base,
        identifiers=LaplacianIds(dim=16),
        encoder=replace(base.encoder, attention=FavorConfig(), drop_path=0.0),
    )


def basis(ids: Ids = "laplacian") -> TokenGTConfig:
    """The synthetic experiment of Table 1: one layer, d = 1024, bell(4) = 15 heads of 128, Lap 20 or ORF 24."""
    _check_ids(ids)
    return TokenGTConfig(
        dim=1024,
        tokens=TokensConfig(graph_token=False, null_token=True),
        identifiers=LaplacianIds(dim=20) if ids == "laplacian" else OrfIds(dim=24),
        encoder=EncoderConfig(num_layers=1, num_heads=15, head_dim=128, mlp_dim=1024, input_dropout=0.1),
        head=HeadConfig(level="node"),
    )


def small() -> TokenGTConfig:
    """A molecule model that trains on a laptop: 4 layers x 96, 8 heads, one token per bond."""
    return TokenGTConfig(
        dim=96,
        tokens=replace(molecule_tokens(), layout="undirected"),
        identifiers=LaplacianIds(dim=16, dropout=0.1),
        encoder=EncoderConfig(
            num_layers=4,
            num_heads=8,
            mlp_dim=192,
            mlp_dropout=0.1,
            drop_path=0.1,
            input_norm=True,
        ),
    )


def gin(virtual_node: bool = False) -> GinConfig:
    """Message passing for molecules that trains on a laptop: 5 layers x 128."""
    tokens = molecule_tokens()
    return GinConfig(virtual_node=virtual_node, node_features=tokens.node_features, edge_features=tokens.edge_features)


# What `tokengt train --preset` takes. A preset that serves a single experiment, such as basis(), is not offered there.
PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "small": small,
    "small-pretrained": small,
    "regression-lap": lambda: regression("laplacian"),
    "regression-orf": lambda: regression("orf"),
    "regression-performer": regression_performer,
    "gin": gin,
    "gin-vn": lambda: gin(virtual_node=True),
}

# Presets whose weights come with the package, and their folder in data/bundled (benchmarks/pretrain.py made them).
PRETRAINED: dict[str, str] = {"small-pretrained": "small-pretrained"}
# Settings of those presets that leave the trained weights as they are: fine-tuning makes a new head anyway.
KEEPS_WEIGHTS = ("head.",)
