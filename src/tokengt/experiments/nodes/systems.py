"""What the table compares: each system with the models that are searched over, and the paper's numbers.

The appendix searches layers 2 to 4, heads 1 to 4, widths 128 to 1024, dropout 0.1 or 0.5 and 64 to 100 eigenvectors
for TokenGT, widths 64 and 1024 for message passing of 4 layers with dropout 0.5. Here a few of these are tried, stated
below; the first is the one that is taken where nothing is searched. Dropped input features are not the appendix's, and
are tried for every system but Graphormer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokengt.attention import FavorConfig
from tokengt.block import EncoderConfig
from tokengt.config import near
from tokengt.models.contract import ModelConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig, MessagePassingConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds, NearOrthonormalIds
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.models.tokengt.tokens import SparseBasis, TokensConfig
from tokengt.models.two_layers import MlpConfig
from tokengt.presets import nodes

Numbers = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class NodeSystem:
    """One line of the table.

    Args:
        name: as ``--systems`` takes it.
        label: as the paper calls it.
        candidates: models by name; the first is taken where nothing is searched.
        asymptotics: how the cost of a step grows with the nodes n and edges m.
        paper: the paper's mean and standard deviation, by the name of the data set.
    """

    name: str
    label: str
    candidates: Mapping[str, ModelConfig]
    asymptotics: str = "O(n + m)"
    paper: Numbers = field(default_factory=dict)

    def searched(self, search: str, width: int) -> dict[str, ModelConfig]:
        """The models that are tried; with ``width`` above 0 each of them that wide."""
        chosen = dict(self.candidates) if search == "small" else dict([next(iter(self.candidates.items()))])
        if not width:
            return chosen
        narrow: dict[str, ModelConfig] = {}
        for name, config in chosen.items():
            wide = _as_wide(config, width)
            # Two that differed in their width alone are one now.
            if wide not in narrow.values():
                narrow[name] = wide
        return narrow


def _as_wide(config: ModelConfig, width: int) -> ModelConfig:
    wide: Any = config
    if isinstance(config, TokenGTConfig):
        return replace(config, dim=width, encoder=replace(config.encoder, mlp_dim=2 * width))
    changed: ModelConfig = replace(wide, dim=width)
    return changed


def tokengt(
    identifiers: IdentifierConfig,
    *,
    dim: int,
    layers: int,
    dropout: float,
    residual: bool = False,
    scale: Any = "mean",
    basis: SparseBasis = "nodes",
    features: float = 0.0,
) -> TokenGTConfig:
    """TokenGT + Performer as the appendix describes it, 4 heads; ``residual``: + SEB, and ``basis`` says who reads.

    ``features`` is the share of them that training drops: without it the nodes of a small graph are learned by heart.
    """
    return TokenGTConfig(
        dim=dim,
        tokens=TokensConfig(layout="undirected", graph_token=False, feature_dropout=features),
        identifiers=identifiers,
        sparse_basis=basis,
        encoder=EncoderConfig(
            num_layers=layers,
            num_heads=4,
            mlp_dim=2 * dim,
            attention=FavorConfig(),
            mlp_dropout=dropout,
            residual_dropout=dropout,
            input_norm=True,
            sparse_basis_residual=residual,
            sparse_basis_scale=scale,
        ),
    )


def _lap(count: int) -> LaplacianIds:
    """Rows of unit length: those of 64 eigenvectors of 13,752 nodes are 0.07 long, and no token would tell by them."""
    return LaplacianIds(dim=count, which="both_ends", sign_flip=False, unit="rows")


def _of_laplacian(**more: Any) -> dict[str, ModelConfig]:
    return {
        "2x256-d64-drop0.5": tokengt(_lap(64), dim=256, layers=2, dropout=0.5, **more),
        "2x256-d64-drop0.5-features0.5": tokengt(_lap(64), dim=256, layers=2, dropout=0.5, features=0.5, **more),
        "2x256-d100-drop0.1": tokengt(_lap(100), dim=256, layers=2, dropout=0.1, **more),
        "2x256-d100-drop0.5-features0.5": tokengt(_lap(100), dim=256, layers=2, dropout=0.5, features=0.5, **more),
    }


def _of_basis() -> dict[str, ModelConfig]:
    """+ SEB. In the paper's equation nodes read the tokens of their edges, which know where nodes lie and nothing of
    what they are. With "both" edges read their nodes too, as in message passing; validation chooses."""
    seb = partial(tokengt, dim=256, dropout=0.5, residual=True)
    return {
        "2x256-d64-both": seb(_lap(64), layers=2, basis="both"),
        "2x256-d64-both-features0.5": seb(_lap(64), layers=2, basis="both", features=0.5),
        "2x256-d100-nodes": seb(_lap(100), layers=2),
        "2x256-d100-both-features0.5": seb(_lap(100), layers=2, basis="both", features=0.5),
    }


def _of_many() -> dict[str, ModelConfig]:
    """More eigenvectors than the appendix has: the more there are, the better a node's tell whom it is joined to."""
    some = partial(tokengt, _lap(400), dim=256, layers=2, dropout=0.5, features=0.5)
    return {"2x256-features0.5": some(), "2x256-both-features0.5": some(residual=True, basis="both")}


def _near() -> dict[str, ModelConfig]:
    near = partial(tokengt, NearOrthonormalIds(64), dim=256, layers=2, dropout=0.5)
    return {"2x256-drop0.5": near(), "2x256-drop0.5-features0.5": near(features=0.5)}


def _messages(kind: type[MessagePassingConfig], **more: Any) -> dict[str, ModelConfig]:
    some = partial(kind, num_layers=4, dropout=0.5, **more)
    return {
        "4x64": some(dim=64),
        "4x1024": some(dim=1024),
        "4x1024-features0.5": some(dim=1024, feature_dropout=0.5),
    }


def _mlp() -> dict[str, ModelConfig]:
    return {
        "2x64": MlpConfig(dim=64, dropout=0.5),
        "2x1024": MlpConfig(dim=1024, dropout=0.5),
        "2x1024-features0.5": MlpConfig(dim=1024, dropout=0.5, feature_dropout=0.5),
    }


def _graphormer() -> dict[str, ModelConfig]:
    """From large to small: those that do not fit are refused."""
    sizes = ((2, 4, 256), (1, 1, 128))
    return {
        f"{layers}x{dim}-{heads}heads": GraphormerConfig(
            dim=dim, num_layers=layers, num_heads=heads, dropout=0.5, attention_dropout=0.5
        )
        for layers, heads, dim in sizes
    }


def _paper(*numbers: tuple[float, float] | None) -> Numbers:
    """The columns of the paper's table, in its order; None where it ran out of memory."""
    names = (
        *("coauthor-cs", "coauthor-physics", "amazon-photo"),
        *("amazon-computers", "chameleon", "crocodile"),
    )
    return {name: pair for name, pair in zip(names, numbers, strict=True) if pair is not None}


_ALL = (
    NodeSystem("mlp", "MLP", _mlp(), "O(n)"),
    NodeSystem(
        "gcn",
        "GCN",
        _messages(GcnConfig),
        paper=_paper((0.895, 0.004), (0.932, 0.004), (0.926, 0.008), (0.873, 0.004), (0.593, 0.01), (0.660, 0.01)),
    ),
    NodeSystem(
        "gat",
        "GAT",
        _messages(GatConfig, num_heads=4),
        paper=_paper((0.893, 0.005), (0.937, 0.01), (0.947, 0.006), (0.914, 0.002), (0.632, 0.011), (0.692, 0.017)),
    ),
    NodeSystem(
        "gin",
        "GIN",
        _messages(GinConfig),
        paper=_paper((0.895, 0.005), (0.886, 0.046), (0.886, 0.017), (0.362, 0.051), (0.479, 0.027), (0.515, 0.041)),
    ),
    NodeSystem(
        "graphormer",
        "Graphormer",
        _graphormer(),
        "O(n^2)",
        paper=_paper((0.791, 0.015), None, (0.894, 0.004), (0.814, 0.013), (0.457, 0.011), (0.489, 0.014)),
    ),
    NodeSystem(
        "tokengt-near",
        "TokenGT (Near-ORF) + Performer",
        _near(),
        paper=_paper((0.882, 0.007), (0.931, 0.009), (0.872, 0.011), (0.82, 0.019), (0.568, 0.019), (0.583, 0.024)),
    ),
    NodeSystem(
        "tokengt-lap",
        "TokenGT (Lap) + Performer",
        _of_laplacian(),
        paper=_paper((0.902, 0.004), (0.941, 0.007), (0.919, 0.009), (0.86, 0.012), (0.637, 0.032), (0.638, 0.025)),
    ),
    NodeSystem(
        "tokengt-lap-seb",
        "TokenGT (Lap) + Performer + SEB",
        _of_basis(),
        paper=_paper((0.903, 0.004), (0.950, 0.003), (0.949, 0.007), (0.912, 0.006), (0.653, 0.029), (0.718, 0.012)),
    ),
    NodeSystem(
        "tokengt-lap-seb-sum",
        "TokenGT (Lap) + Performer + SEB, its sum unscaled",
        _of_laplacian(residual=True, scale="sum"),
    ),
    NodeSystem("tokengt-lap-400", "TokenGT (Lap, 400 eigenvectors) + Performer", _of_many()),
    NodeSystem("tokengt-nodes", "TokenGT, the preset nodes", {"nodes": nodes(), "nodes-wide": nodes(large=True)}),
)
SYSTEMS: dict[str, NodeSystem] = {system.name: system for system in _ALL}
# The lines of the table; the sum as the paper's equation has it is for those who name it.
TABLE = tuple(name for name in SYSTEMS if name != "tokengt-lap-seb-sum")


def systems_named(names: tuple[str, ...]) -> list[NodeSystem]:
    """The systems of these names.

    Raises:
        ValueError: there is none of this name.
    """
    for name in names:
        if name not in SYSTEMS:
            raise ValueError(f"system {name!r} is unknown{near(name, SYSTEMS)}; expected one of {', '.join(SYSTEMS)}")
    return [SYSTEMS[name] for name in dict.fromkeys(names)]
