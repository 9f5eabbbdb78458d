"""Named configurations: a preset is a function that returns a config."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from tokengt.attention import FavorConfig, SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.interop.molecules import MOLECULE_CATEGORIES
from tokengt.models.contract import ModelConfig
from tokengt.models.egt import EgtConfig
from tokengt.models.features import FeatureSpec
from tokengt.models.gps import GpsConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig, MessagePassingConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import LaplacianIds, NearOrthonormalIds, NoIds, OrfIds
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.models.tokengt.structure import StructureConfig
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


def walks(*, large: bool = False) -> TokenGTConfig:
    """A plain encoder with stronger inputs: random walks and degrees, and blocks that attend between joined tokens.

    10 layers x 64 for ten thousand graphs of the size of ZINC's, below 500,000 parameters: three of four blocks attend
    between tokens that share a node, which tells them who is joined, so that there are no identifiers, whose random
    signs cost it accuracy; rings of up to 24 nodes are counted. ``large`` is 10 x 256 for a hundred thousand graphs and
    more, such as QM9's, with Laplacian identifiers and every other block masked. The regularisers of the small one are
    those of plain encoders that learned ZINC for thousands of epochs. What each of these choices brings was measured on
    ZINC (results/LOG.md).
    """
    return TokenGTConfig(
        dim=256 if large else 64,
        tokens=replace(molecule_tokens(), layout="undirected"),
        identifiers=LaplacianIds(dim=16) if large else NoIds(),
        structure=StructureConfig(walks=16, degree=True) if large else StructureConfig(walks=20, rings=24, degree=True),
        encoder=EncoderConfig(
            num_layers=10,
            num_heads=8,
            mlp_dim=512 if large else 128,
            attention=SoftmaxConfig(dropout=0.1 if large else 0.2),
            drop_path=0.1,
            input_norm=True,
            incidence="alternate" if large else "most",
        ),
        head=HeadConfig(mlp=True),
    )


def nodes(*, large: bool = False, exact: bool = False, inductive: bool = False) -> TokenGTConfig:
    """For the nodes of one graph: FAVOR+, one token per undirected edge, eigenvectors of both ends, sparse basis.

    2 layers x 64 for a laptop; if ``large``, 256 wide with 400 eigenvectors instead of 64, more dropout, and edges that
    read their nodes as well, which was far better on two of four graphs, and level on two (results/nodes). ``exact``
    attends by softmax, for a small graph. Signs of eigenvectors are fixed when it is fitted to one graph, so that it
    knows where each node lies in it; eigenvectors of another graph would say something else. ``inductive`` is for
    predicting other graphs than the one it is trained on: its identifiers are random signs, new ones at every step, and
    edges read their nodes as well.
    """
    dim, count, dropout = (256, 400, 0.5) if large else (64, 64, 0.3)
    return TokenGTConfig(
        dim=dim,
        tokens=TokensConfig(layout="undirected", graph_token=False, feature_dropout=0.5),
        identifiers=NearOrthonormalIds(dim=64) if inductive else LaplacianIds(count, "both_ends", unit="rows"),
        sparse_basis="both" if inductive or large else "nodes",
        encoder=EncoderConfig(
            num_layers=2,
            num_heads=4,
            mlp_dim=2 * dim,
            attention=SoftmaxConfig() if exact else FavorConfig(),
            mlp_dropout=dropout,
            residual_dropout=dropout,
            input_norm=True,
            sparse_basis_residual=True,
            sparse_basis_scale="mean",
        ),
        head=HeadConfig(level="node"),
    )


def without_identifiers(config: TokenGTConfig) -> TokenGTConfig:
    """The same Transformer without node and type identifiers: it cannot tell which nodes an edge joins."""
    return replace(config, identifiers=NoIds(), tokens=replace(config.tokens, type_ids=False))


def published(config: TokenGTConfig) -> TokenGTConfig:
    """A model of the paper with its authors' tables of 512 rows per column and their MLP head: what Table 2 counts.

    Rows that no atom or bond names learn nothing. Fitted to a data set, the model has the rows of that data alone.
    """
    tokens = replace(config.tokens, node_features=_rows(9, 512), edge_features=_rows(3, 512))
    return replace(config, tokens=tokens, head=replace(config.head, mlp=True))


def _rows(columns: int, each: int) -> FeatureSpec:
    """Tables with the same number of rows for every column, as authors choose them who count no vocabulary."""
    return FeatureSpec(categories=(each,) * columns)


def _molecules() -> dict[str, Any]:
    """OGB's atom and bond columns as fields of a config."""
    return {name: FeatureSpec(categories=sizes) for name, sizes in MOLECULE_CATEGORIES.items()}


_MESSAGES: dict[str, type[MessagePassingConfig]] = {"gcn": GcnConfig, "gin": GinConfig, "gat": GatConfig}


def message_passing(
    kind: Literal["gcn", "gin", "gat"], *, virtual_node: bool = False, large: bool = False, paper: bool = False
) -> MessagePassingConfig:
    """Message passing for molecules: 5 layers x 128, or with ``paper`` the 5 x 600 of Table 2, as OGB's code has it.

    ``large`` is twice as deep and twice as wide, as the paper's GAT-VN (large).
    """
    dim, layers = 600 if paper else 128, 5
    if large:
        dim, layers = 2 * dim, 2 * layers
    options: dict[str, Any] = {"mlp_dim": dim, "pooling": "sum", "dropout": 0.0} if paper else {}
    return _MESSAGES[kind](dim=dim, num_layers=layers, virtual_node=virtual_node, **_molecules(), **options)


def gin(virtual_node: bool = False) -> MessagePassingConfig:
    """A GIN for molecules that trains on a laptop: 5 layers x 128."""
    return message_passing("gin", virtual_node=virtual_node)


def graphormer(paper: bool = False) -> GraphormerConfig:
    """4 layers x 96, or with ``paper`` the authors' PCQM4Mv2 model: 12 x 768, 32 heads, tables of 512 rows."""
    if not paper:
        return GraphormerConfig(dim=96, mlp_dim=192, **_molecules())
    return GraphormerConfig(
        dim=768,
        num_layers=12,
        num_heads=32,
        node_features=_rows(9, 512),
        edge_features=_rows(3, 512),
        max_degree=511,
        max_distance=127,
        mlp_head=True,
    )


def egt(paper: bool = False) -> EgtConfig:
    """4 layers x 96 with 32 edge channels, or with ``paper`` the authors' PCQM4Mv2 model: 24 x 768 with 64."""
    if not paper:
        return EgtConfig(dim=96, mlp_ratio=2, **_molecules())
    return EgtConfig(
        dim=768,
        num_layers=24,
        num_heads=32,
        edge_dim=64,
        virtual_nodes=4,
        dropout=0.0,
        attention_dropout=0.3,
        node_features=_rows(9, 128),
        edge_features=_rows(3, 8),
    )


def grpe(paper: bool = False) -> GrpeConfig:
    """4 layers x 96, or with ``paper`` the authors' PCQM4Mv2 model: 12 x 768, 32 heads, distances up to 5."""
    if not paper:
        return GrpeConfig(dim=96, mlp_dim=192, **_molecules())
    return GrpeConfig(dim=768, num_layers=12, num_heads=32, node_features=_rows(9, 512), edge_features=_rows(3, 8))


def gps(paper: bool = False) -> GpsConfig:
    """4 layers x 64, or with ``paper`` the size of the authors' PCQM4Mv2 model (medium): 10 x 384, 16 heads."""
    if not paper:
        return GpsConfig(**_molecules())
    return GpsConfig(dim=384, num_layers=10, num_heads=16, **_molecules())


# Those that are chosen by themselves where all labels are of the nodes of one graph.
NODES, NODES_EXACT = "nodes", "nodes-exact"
NODE_PRESETS = (NODES, NODES_EXACT)
# What `tokengt train --preset` takes. A name that ends in -paper is the model of a paper in its published size, and the
# name without it a model of this kind for a laptop. Presets of a single experiment, such as basis(), are not offered.
PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "small": small,
    "small-pretrained": small,
    "tokengt-walks-small": walks,
    "tokengt-walks": partial(walks, large=True),
    "regression-lap": lambda: regression("laplacian"),
    "regression-orf": lambda: regression("orf"),
    "regression-performer": regression_performer,
    NODES: nodes,
    NODES_EXACT: partial(nodes, exact=True),
    "nodes-large": partial(nodes, large=True),
    "nodes-inductive": partial(nodes, inductive=True),
    "transformer": lambda: without_identifiers(small()),
    "gcn": partial(message_passing, "gcn"),
    "gcn-vn": partial(message_passing, "gcn", virtual_node=True),
    "gin": gin,
    "gin-vn": partial(gin, virtual_node=True),
    "gat": partial(message_passing, "gat"),
    "gat-vn": partial(message_passing, "gat", virtual_node=True),
    "gat-vn-large": partial(message_passing, "gat", virtual_node=True, large=True),
    "graphormer": graphormer,
    "egt": egt,
    "grpe": grpe,
    "gps": gps,
    "gcn-paper": partial(message_passing, "gcn", paper=True),
    "gin-paper": partial(message_passing, "gin", paper=True),
    "gat-paper": partial(message_passing, "gat", paper=True),
    "gcn-vn-paper": partial(message_passing, "gcn", virtual_node=True, paper=True),
    "gin-vn-paper": partial(message_passing, "gin", virtual_node=True, paper=True),
    "gat-vn-paper": partial(message_passing, "gat", virtual_node=True, paper=True),
    "gat-vn-large-paper": partial(message_passing, "gat", virtual_node=True, large=True, paper=True),
    "graphormer-paper": partial(graphormer, paper=True),
    "egt-paper": partial(egt, paper=True),
    "grpe-paper": partial(grpe, paper=True),
    "gps-paper": partial(gps, paper=True),
    "transformer-paper": lambda: without_identifiers(published(regression())),
    "tokengt-orf-paper": lambda: published(regression("orf")),
    "tokengt-lap-paper": lambda: published(regression("laplacian")),
    "tokengt-performer-paper": lambda: published(regression_performer()),
}

# Presets whose weights come with the package, and their folder in data/bundled (benchmarks/pretrain.py made them).
PRETRAINED: dict[str, str] = {"small-pretrained": "small-pretrained"}
# Settings of those presets that leave the trained weights as they are: fine-tuning makes a new head anyway.
KEEPS_WEIGHTS = ("head.", "descriptors.")
