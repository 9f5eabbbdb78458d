"""What Table 1 varies, what it holds fixed, and the paper's numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tokengt import presets
from tokengt.data.synthetic import BarabasiAlbertConfig
from tokengt.models.tokengt.identifiers import IdentifierKind, LaplacianIds, identifiers_of_kind
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.structure.patterns import bell_number

Input = Literal["dense", "sparse"]
Split = Literal["train", "test"]
Precision = Literal["float32", "tf32", "bf16"]

INPUTS: tuple[Input, ...] = get_args(Input)
SPLITS: tuple[Split, ...] = get_args(Split)
NUM_HEADS = bell_number(4)
LAPLACIAN_DIM = 20
# What the paper says of its sparse graphs; every direction of an edge is counted.
PAPER_STATISTICS = {"graphs": 1280, "nodes": 14.9, "edges": 47.8}


@dataclass(frozen=True)
class Score:
    """A squared error over three runs."""

    mean: float
    std: float


@dataclass(frozen=True)
class Setting:
    """One row of Table 1.

    Args:
        name: how commands and files call it.
        ids: the kind of node identifiers.
        types: whether tokens carry type identifiers.
        dense: the paper's errors for dense input, train and test.
        sparse: the same for sparse input.
    """

    name: str
    ids: IdentifierKind
    types: bool
    dense: tuple[Score, Score]
    sparse: tuple[Score, Score]

    def paper(self, kind: Input, split: Split) -> Score:
        return (self.dense if kind == "dense" else self.sparse)[SPLITS.index(split)]

    @property
    def kinds(self) -> int:
        """How many learned vectors say what a token is: node and edge, or none.

        The first row of the table has one vector for all tokens: without it they would be zero, and dropout would have
        nothing to vary. In the other rows one vector would be a type identifier in disguise: LayerNorm divides it by
        the norm of [P_u, P_v] w_in, which differs between nodes (u = v) and edges.
        """
        if self.types:
            return 2
        return 1 if self.ids == "none" else 0

    def id_dim(self, kind: Input) -> int:
        """d_p. The paper names those of ORF and Laplacian eigenvectors; the others are the authors' code's."""
        widths = {"none": 1, "random": 64, "orf": 24, "laplacian": LAPLACIAN_DIM, "random_first_order": 128}
        return widths.get(self.ids, 225 if kind == "dense" else 128)


def _row(ids: IdentifierKind, types: bool, *scores: float) -> Setting:
    dense_train, dense_test, sparse_train, sparse_test = (
        Score(mean, std) for mean, std in zip(scores[::2], scores[1::2], strict=True)
    )
    name = ids.replace("_", "-") + ("-type" if types else "")
    return Setting(name, ids, types, (dense_train, dense_test), (sparse_train, sparse_test))


SETTINGS = (
    _row("none", False, 47.95, 0.600, 53.93, 1.426, 29.88, 0.450, 34.70, 1.167),
    _row("none", True, 32.38, 0.448, 40.06, 1.202, 15.92, 0.275, 20.39, 0.765),
    _row("random_first_order", True, 32.19, 0.476, 32.49, 3.687, 15.87, 0.247, 16.56, 0.904),
    _row("orf_first_order", True, 32.35, 0.369, 39.87, 1.263, 15.87, 0.247, 16.56, 0.908),
    _row("random", False, 5.909, 0.019, 5.548, 0.090, 8.152, 0.042, 8.270, 0.285),
    _row("orf", False, 5.472, 0.035, 5.143, 0.078, 7.167, 0.025, 7.190, 0.217),
    _row("laplacian", False, 1.899, 3.050, 1.702, 2.912, 0.288, 0.019, 0.064, 0.010),
    _row("random", True, 0.375, 0.009, 0.234, 0.011, 0.990, 0.108, 0.875, 0.042),
    _row("orf", True, 0.080, 0.001, 0.009, 5e-5, 0.129, 0.002, 0.011, 0.002),
    _row("laplacian", True, 0.053, 1.5e-5, 0.005, 1e-4, 0.101, 0.003, 0.019, 0.007),
)


def select_settings(ids: Sequence[str] | None = None, types: bool | None = None) -> tuple[Setting, ...]:
    """The rows with these kinds of identifiers and with, or without, type identifiers; None for both.

    Raises:
        ValueError: a kind that Table 1 does not have, or kinds and types that it does not combine.
    """
    kinds = tuple(dict.fromkeys(setting.ids for setting in SETTINGS))
    wanted = kinds if ids is None else tuple(kind.replace("-", "_") for kind in ids)
    for kind in wanted:
        if kind not in kinds:
            raise ValueError(f"identifiers are {kind!r}; the table has {', '.join(kinds)}")
    chosen = tuple(s for s in SETTINGS if s.ids in wanted and types in (None, s.types))
    if not chosen:
        raise ValueError(f"the table has {', '.join(wanted)} {'without' if types else 'only with'} type identifiers")
    return chosen


@dataclass(frozen=True)
class BasisConfig:
    """What all cells of the table share. The defaults are the paper's and, where it is silent, the authors' code's.

    Args:
        width: d.
        head_dim: d_H of each of the bell(4) = 15 heads.
        input_dropout: on the tokens.
        input_factor: train w_in as the product of two matrices, as the authors do (a linear map after the sum). The
            functions are the same; training goes further: dense Laplacian input ends at 0.0049, and at 0.0053 without.
        steps: updates of the weights.
        warmup: of them, those in which the rate rises; then it falls linearly to zero.
        learning_rate: at its highest.
        clip: largest norm of the gradient.
        dense_batch: graphs per update for dense input.
        sparse_batch: the same for sparse input.
        train_graphs: how many.
        test_graphs: how many.
        min_nodes: of the smallest graphs.
        dense_max_nodes: of the largest graphs for dense input.
        sparse_max_nodes: of the largest graphs for sparse input.
        data_seed: run number s has the graphs of seed ``data_seed + s``; 12 is the set whose statistics the paper has.
        sign_flip: random signs of Laplacian eigenvectors in training; the authors have none in this experiment.
        precision: of the matrix products in training. Softmax and loss are float32, as is all of the evaluation.
    """

    width: int = 1024
    head_dim: int = 128
    input_dropout: float = 0.1
    input_factor: bool = True
    steps: int = 3000
    warmup: int = 1000
    learning_rate: float = 1e-4
    clip: float = 5.0
    dense_batch: int = 256
    sparse_batch: int = 512
    train_graphs: int = 1152
    test_graphs: int = 128
    min_nodes: int = 10
    dense_max_nodes: int = 15
    sparse_max_nodes: int = 20
    data_seed: int = 12
    sign_flip: bool = False
    precision: Precision = "bf16"

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision is {self.precision!r}; expected one of {', '.join(get_args(Precision))}")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup is {self.warmup} of {self.steps} steps; expected 0 or more and fewer than steps")
        for name in ("dense_batch", "sparse_batch", "train_graphs", "test_graphs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")

    def batch(self, kind: Input) -> int:
        return self.dense_batch if kind == "dense" else self.sparse_batch

    def graphs(self, kind: Input, seed: int) -> BarabasiAlbertConfig:
        return BarabasiAlbertConfig(
            num_graphs=self.train_graphs + self.test_graphs,
            min_nodes=self.min_nodes,
            max_nodes=self.dense_max_nodes if kind == "dense" else self.sparse_max_nodes,
            seed=self.data_seed + seed,
        )

    def rate(self, update: int) -> float:
        """The learning rate of update 1, 2, ..., ``steps``."""
        if update <= self.warmup:
            return self.learning_rate * update / self.warmup
        return self.learning_rate * (self.steps - update) / (self.steps - self.warmup)

    def model(self, setting: Setting, kind: Input) -> TokenGTConfig:
        """``presets.basis`` with the setting's identifiers."""
        base = presets.basis()
        identifiers = identifiers_of_kind(setting.ids, setting.id_dim(kind))
        if isinstance(identifiers, LaplacianIds):
            identifiers = replace(identifiers, sign_flip=self.sign_flip)
        return replace(
            base,
            dim=self.width,
            tokens=replace(base.tokens, type_ids=setting.kinds > 0),
            identifiers=identifiers,
            encoder=replace(base.encoder, head_dim=self.head_dim, mlp_dim=self.width, input_dropout=self.input_dropout),
        )
