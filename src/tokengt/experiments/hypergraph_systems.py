"""Systems that classify the nodes of one hypergraph: TokenGT on its tokens, an MLP, a GCN on its clique expansion."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tokengt.attention import FavorConfig, SoftmaxConfig
from tokengt.batch import GraphBatch
from tokengt.block import EncoderConfig
from tokengt.data.hypergraphs import LabelledHypergraph
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.graph import Graph
from tokengt.models.contract import ModelConfig
from tokengt.models.tokengt.identifiers import LaplacianIds
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig
from tokengt.training.config import TrainingConfig

System = Literal["majority", "mlp", "clique_gcn", "tokengt_pooled", "tokengt_order_3"]
# The systems that are trained; the majority class has no weights.
Trained = Literal["mlp", "clique_gcn", "tokengt_pooled", "tokengt_order_3"]
SYSTEMS: tuple[System, ...] = get_args(System)
DATASETS = ("cocitation_cora", "cocitation_citeseer", "coauthorship_cora")


@dataclass(frozen=True)
class HypergraphConfig:
    """What is run and how.

    Args:
        datasets: names of files in TOKENGT_DATA/hypergraphs.
        systems: "mlp" sees features only, "clique_gcn" joins every two nodes of a hyperedge, "tokengt_pooled" reads
            every hyperedge as one pooled token, "tokengt_order_3" those of up to three nodes as ordered triples.
        seeds: of the split and the weights, one run each.
        width: hidden channels of every system.
        num_layers: blocks of TokenGT; the baselines have two layers.
        num_heads: of TokenGT.
        id_dim: Laplacian eigenvectors, half from each end of the spectrum.
        attention: of TokenGT; "favor" is linear in tokens.
        dropout: on features and inside every system.
        learning_rate: of TokenGT.
        weight_decay: of TokenGT.
        baseline_learning_rate: of the MLP and the GCN.
        baseline_weight_decay: of the MLP and the GCN.
        epochs: full-batch steps at most.
        patience: epochs without a better validation accuracy before a run ends.
    """

    datasets: tuple[str, ...] = DATASETS
    systems: tuple[System, ...] = SYSTEMS
    seeds: tuple[int, ...] = (0, 1, 2)
    width: int = 64
    num_layers: int = 2
    num_heads: int = 4
    id_dim: int = 32
    attention: Literal["favor", "softmax"] = "favor"
    dropout: float = 0.5
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    baseline_learning_rate: float = 1e-2
    baseline_weight_decay: float = 1e-2
    epochs: int = 200
    patience: int = 40

    def __post_init__(self) -> None:
        for system in self.systems:
            if system not in SYSTEMS:
                raise ValueError(f"system is {system!r}; expected one of {', '.join(SYSTEMS)}")


def split_nodes(num_nodes: int, seed: int) -> Split:
    """A random half of the nodes for training, a quarter each for validation and test."""
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    return Split(*(part.sort().values for part in order.tensor_split([num_nodes // 2, 3 * num_nodes // 4])))


def hypergraph_store(data: LabelledHypergraph, system: Trained) -> Store:
    """The hypergraph as a store of one graph with labels on its nodes; the baselines need no hyperedge features."""
    if system in ("mlp", "clique_gcn"):
        graph = Graph.from_hyperedges(data.hyperedges, scaled_features(data))
    else:
        graph = hypergraph_tokens(data, 3 if system == "tokengt_order_3" else None)
    classes = tuple(map(str, range(data.num_classes)))
    labels = data.labels[:, None].double()
    return Store.from_memory(
        GraphBatch.collate([graph]), labels, target_names=("class",), level="node", classes=(classes,)
    )


def hypergraph_tokens(data: LabelledHypergraph, order: int | None) -> Graph:
    """The hypergraph with the mean of its members' features on every hyperedge; tuples up to ``order`` nodes."""
    features = scaled_features(data)
    means = torch.stack([features[list(members)].mean(0) for members in data.hyperedges])
    return Graph.from_hyperedges(data.hyperedges, features, means, order=order)


def scaled_features(data: LabelledHypergraph) -> Float[Tensor, "nodes width"]:
    """Rows that sum to one."""
    return F.normalize(data.node_features, p=1, dim=1)


def model_config(system: Trained, config: HypergraphConfig) -> ModelConfig:
    """The model of a system, before it is fitted to a hypergraph."""
    if system in ("mlp", "clique_gcn"):
        baseline = MlpConfig if system == "mlp" else CliqueGcnConfig
        return baseline(dim=config.width, dropout=config.dropout, feature_dropout=config.dropout)
    return TokenGTConfig(
        dim=config.width,
        tokens=TokensConfig(feature_dropout=config.dropout),
        identifiers=LaplacianIds(dim=config.id_dim, which="both_ends", sign_flip=False),
        encoder=EncoderConfig(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            mlp_dim=2 * config.width,
            attention=FavorConfig() if config.attention == "favor" else SoftmaxConfig(),
            mlp_dropout=config.dropout,
            residual_dropout=config.dropout,
            input_dropout=config.dropout,
            input_norm=True,
            sparse_basis_residual=True,
        ),
    )


def recipe(system: Trained, config: HypergraphConfig) -> TrainingConfig:
    """Full-batch steps at one rate, in full precision on any device."""
    baseline = system in ("mlp", "clique_gcn")
    return TrainingConfig(
        epochs=config.epochs,
        batch_size=1,
        learning_rate=config.baseline_learning_rate if baseline else config.learning_rate,
        weight_decay=config.baseline_weight_decay if baseline else config.weight_decay,
        warmup=0.0,
        schedule="constant",
        clip=0.0,
        patience=config.patience,
        precision="float32",
    )
