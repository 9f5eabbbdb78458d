"""What Table 2 compares: each system with its size, the ways to train it that are tried, and the paper's numbers.

A system is a name, a preset and settings: a new one is an entry of :data:`SYSTEMS`. Any other preset can be named too,
and is then trained as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokengt.config import near
from tokengt.presets import PRESETS

# How large models are: under 500,000 parameters for ZINC-12k and peptides-func, about five million for QM9, and as in
# the paper for PCQM4Mv2. GAT-VN (large) is twice as deep and twice as wide as GAT-VN, as the paper has it.
Size = Literal["small", "medium", "paper"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """One way to train: what it is called, and its settings of ``training``."""

    name: str
    settings: Mapping[str, Any]

    @property
    def rate(self) -> float:
        return float(self.settings["learning_rate"])


@dataclass(frozen=True, eq=False)
class TableSystem:
    """One line of the table.

    Args:
        name: as ``--systems`` takes it; the folder of its trainings.
        label: as the paper calls it.
        preset: the model.
        paper_preset: the model in its published size; None for ``preset``.
        sizes: settings of ``model`` for the smaller sizes.
        recipes: up to three ways to train it, for each size; its authors' own is called "own".
        asymptotics: how the cost of a step grows with the nodes n and edges m of a graph, as the paper says it.
        paper: the paper's validation MAE on PCQM4Mv2 in eV.
        paper_parameters: in millions, as the paper counts them.
        start: the system whose trained run it goes on with; it is not trained from random weights, and has the size
            of that run.
        attention: the kind of attention that it goes on with.
    """

    name: str
    label: str
    preset: str
    paper_preset: str | None = None
    sizes: Mapping[Size, Mapping[str, Any]] = field(default_factory=dict)
    recipes: Mapping[Size, tuple[Recipe, ...]] = field(default_factory=dict)
    asymptotics: str = ""
    paper: float | None = None
    paper_parameters: float | None = None
    start: str | None = None
    attention: str | None = None

    def preset_of(self, size: Size) -> str:
        return self.paper_preset or self.preset if size == "paper" else self.preset

    def settings_of(self, size: Size) -> dict[str, Any]:
        return {f"model.{path}": value for path, value in self.sizes.get(size, {}).items()}


def _recipes(own: Mapping[str, Any], rates: Mapping[Size, Sequence[float]]) -> dict[Size, tuple[Recipe, ...]]:
    """The authors' way, and our usual one (AdamW, a tenth of warm-up, then a cosine) at other rates."""
    return {
        size: (Recipe("own", own), *(Recipe(f"{rate:g}", {"learning_rate": rate}) for rate in usual))
        for size, usual in rates.items()
    }


_USUAL: Mapping[Size, Sequence[float]] = {"small": (1e-3, 2e-3), "medium": (5e-4, 1e-3), "paper": (1e-4, 4e-4)}
_FASTER: Mapping[Size, Sequence[float]] = dict.fromkeys(("small", "medium", "paper"), (5e-4, 2e-3))
# The paper's appendix on GAT, which follows OGB's baselines: 100 epochs, the rate times 0.25 every 30 of them. Here the
# epochs follow from the time there is, and the rate falls at the same shares of them.
_OGB = {"learning_rate": 1e-3, "batch_size": 256, "schedule": "steps", "warmup": 0.0, "weight_decay": 0.0, "clip": 0.0}
# The authors' PCQM4Mv2 settings: rate, weight decay, and the share of the steps that warm up.
_LINEAR = {"learning_rate": 2e-4, "schedule": "linear", "warmup": 0.06, "clip": 5.0}
_TOKENGT = _recipes({**_LINEAR, "weight_decay": 0.1}, _USUAL)
_GRAPHORMER = _recipes({**_LINEAR, "weight_decay": 0.0}, _USUAL)
_GRPE = _recipes({**_LINEAR, "warmup": 0.0075, "weight_decay": 0.0}, _USUAL)
_EGT = _recipes({"learning_rate": 1e-4, "schedule": "cosine", "warmup": 0.2, "weight_decay": 0.0}, _USUAL)
_GPS = _recipes({"learning_rate": 2e-4, "schedule": "cosine", "warmup": 0.067, "weight_decay": 0.0}, _USUAL)

# 110,000 molecules seen a few dozen times are not learned by heart: nothing is dropped.
_NO_DROPOUT = {"dropout": 0.0}
_NO_DROPOUTS = {"dropout": 0.0, "attention_dropout": 0.0}


def _messages(name: str, label: str, small: int, medium: int, paper: float, parameters: float) -> TableSystem:
    """Message passing, by the width of its states."""
    sizes: dict[Size, Mapping[str, Any]] = {"small": {"dim": small}, "medium": {"dim": medium, **_NO_DROPOUT}}
    recipes = _recipes(_OGB, _FASTER)
    return TableSystem(name, label, name, f"{name}-paper", sizes, recipes, "O(n + m)", paper, parameters)


def _encoder(dim: int, layers: int, **more: float) -> dict[str, Any]:
    """A Transformer over tokens, eight heads, the MLP twice as wide as the states."""
    sizes = {"dim": dim, "encoder.num_layers": layers, "encoder.num_heads": 8, "encoder.mlp_dim": 2 * dim}
    return {**sizes, **{f"encoder.{name.replace('__', '.')}": value for name, value in more.items()}}


_SMALL = _encoder(96, 6, attention__dropout=0.0)
_MEDIUM = _encoder(256, 10, attention__dropout=0.0, mlp_dropout=0.0, drop_path=0.0)
# Kernel attention has no weights that could be dropped.
_PERFORMER: dict[Size, Mapping[str, Any]] = {"small": _encoder(96, 6), "medium": _encoder(256, 10, mlp_dropout=0.0)}


def _tokengt(
    name: str, label: str, preset: str, paper: float | None = None, parameters: float | None = None, **settings: Any
) -> TableSystem:
    """A Transformer over node and edge tokens."""
    more = {path.replace("__", "."): value for path, value in settings.items()}
    sizes: dict[Size, Mapping[str, Any]] = {"small": {**_SMALL, **more}, "medium": {**_MEDIUM, **more}, "paper": more}
    return TableSystem(name, label, preset, None, sizes, _TOKENGT, "O((n + m)^2)", paper, parameters)


_PAIRS = {"num_layers": 6, "num_heads": 8, "dim": 96, "mlp_dim": 192}
_MORE_PAIRS = {"num_layers": 10, "num_heads": 8, "dim": 256, "mlp_dim": 512, **_NO_DROPOUTS}
_LAP = "tokengt-lap-paper"

# The fourteen rows of the paper's Table 2 in its order.
_PAPER = (
    _messages("gcn", "GCN", 288, 960, 0.1379, 2.0),
    _messages("gin", "GIN", 148, 496, 0.1195, 3.8),
    _messages("gat", "GAT", 208, 672, 0.1302, 6.7),
    _messages("gcn-vn", "GCN-VN", 144, 480, 0.1153, 4.9),
    _messages("gin-vn", "GIN-VN", 112, 368, 0.1083, 6.7),
    _messages("gat-vn", "GAT-VN", 128, 416, 0.1192, 6.7),
    _messages("gat-vn-large", "GAT-VN (large)", 256, 832, 0.1361, 55.2),
    TableSystem(
        *("graphormer", "Graphormer", "graphormer", "graphormer-paper"),
        {"small": _PAIRS, "medium": _MORE_PAIRS},
        *(_GRAPHORMER, "O(n^2)", 0.0864, 48.3),
    ),
    TableSystem(
        *("egt", "EGT", "egt", "egt-paper"),
        {"small": {"dim": 96, "num_layers": 5}, "medium": {"dim": 256, "num_layers": 8, **_NO_DROPOUTS}},
        *(_EGT, "O(n^2)", 0.0869, 89.3),
    ),
    TableSystem(
        *("grpe", "GRPE", "grpe", "grpe-paper"),
        {"small": _PAIRS, "medium": _MORE_PAIRS},
        *(_GRPE, "O(n^2)", 0.0890, 46.2),
    ),
    _tokengt("transformer", "Transformer", "transformer-paper", 0.2340, 48.5),
    _tokengt("tokengt-orf", "TokenGT (ORF)", "tokengt-orf-paper", 0.0962, 48.6),
    _tokengt("tokengt-lap", "TokenGT (Lap)", _LAP, 0.0910, 48.5),
    TableSystem(
        *("tokengt-performer", "TokenGT (Lap) + Performer", "tokengt-performer-paper"),
        sizes=_PERFORMER,
        asymptotics="O(n + m)",
        paper=0.0935,
        paper_parameters=48.5,
        start="tokengt-lap",
        attention="favor",
    ),
)
# A moving average of the weights, which long trainings of small models are known to gain by.
_AVERAGED = {
    size: tuple(Recipe(recipe.name, {**recipe.settings, "ema": 0.999}) for recipe in recipes)
    for size, recipes in _recipes({"learning_rate": 2e-3, "warmup": 0.02, "weight_decay": 1e-5}, _USUAL).items()
}
# On QM9 as in results/molecules/long.json.
_LONG = {"learning_rate": 1e-3, "batch_size": 512, "warmup": 0.05, "weight_decay": 0.05, "ema": 0.999, "loss": "huber"}
_WALKS_RECIPES = {**_AVERAGED, "medium": (Recipe("own", _LONG), *_AVERAGED["medium"][1:])}
_WALKS = {
    "dim": 256,
    "encoder.num_layers": 10,
    "encoder.mlp_dim": 512,
    "encoder.attention.dropout": 0.1,
    "encoder.incidence": "alternate",
    "encoder.drop_path": 0.2,
    "identifiers.kind": "laplacian",
    "identifiers.dim": 16,
    "structure.walks": 16,
    "structure.rings": 0,
}
# Beside them: a rival that is newer than the paper, TokenGT with one token for a bond instead of two, and that with
# stronger inputs: random walks, degrees, rings (of the small size, which needs no identifiers then) and masked layers.
_BESIDE = (
    TableSystem(
        *("gps", "GPS", "gps", "gps-paper"),
        {"small": {"num_layers": 11}, "medium": {"dim": 240, "num_layers": 8, **_NO_DROPOUTS}},
        *(_GPS, "O(n^2 + m)"),
    ),
    _tokengt("tokengt-lap-bond", "TokenGT (Lap), one token per bond", _LAP, tokens__layout="undirected"),
    TableSystem(
        *("tokengt-walks", "TokenGT, stronger inputs", "tokengt-walks-small", "tokengt-walks"),
        {"small": {"encoder.num_layers": 12}, "medium": _WALKS},
        *(_WALKS_RECIPES, "O((n + m)^2)"),
    ),
)
# The paper says that random signs and dropped eigenvectors regularise: TokenGT (Lap) without them.
_ABLATIONS = (
    _tokengt("lap-no-flips", "TokenGT (Lap) without sign flips", _LAP, identifiers__sign_flip=False),
    _tokengt("lap-no-dropout", "TokenGT (Lap) without eigenvector dropout", _LAP, identifiers__dropout=0.0),
    _tokengt(
        *("lap-neither", "TokenGT (Lap) without both", _LAP), identifiers__sign_flip=False, identifiers__dropout=0.0
    ),
)
SYSTEMS: dict[str, TableSystem] = {system.name: system for system in (*_PAPER, *_BESIDE, *_ABLATIONS)}
# What is run when nothing is named, and what --ablation means.
TABLE: tuple[str, ...] = tuple(system.name for system in (*_PAPER, *_BESIDE))
ABLATION: tuple[str, ...] = ("tokengt-lap", *(system.name for system in _ABLATIONS))


def systems_named(names: Sequence[str]) -> list[TableSystem]:
    """The systems of these names, each once, and those that one of them begins with.

    A preset that is no system is one by its own name, as it is.
    """
    found: dict[str, TableSystem] = {}
    for name in names:
        system = SYSTEMS.get(name) or _of_preset(name)
        if system.start is not None:
            found.setdefault(system.start, SYSTEMS[system.start])
        found.setdefault(name, system)
    return list(found.values())


def _of_preset(name: str) -> TableSystem:
    if name not in PRESETS:
        known = (*SYSTEMS, *PRESETS)
        raise ValueError(
            f"system {name!r} is unknown{near(name, known)}; expected one of {', '.join(SYSTEMS)}, or a preset"
        )
    usual = {
        size: tuple(Recipe(f"{rate:g}", {"learning_rate": rate}) for rate in rates) for size, rates in _USUAL.items()
    }
    return TableSystem(name, name, name, recipes=usual)
