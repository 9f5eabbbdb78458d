"""Systems that classify the nodes of one hypergraph: TokenGT on its tokens, an MLP, a GCN on its clique expansion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig
from tokengt.batch import GraphBatch
from tokengt.block import EncoderConfig
from tokengt.data.hypergraphs import LabelledHypergraph
from tokengt.graph import Graph
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import LaplacianIds, identify
from tokengt.models.tokengt.model import TokenGT, TokenGTConfig
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.structure.adjacency import adjacency_pairs

System = Literal["majority", "mlp", "clique_gcn", "tokengt_pooled", "tokengt_order_3"]
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


def split_nodes(num_nodes: int, seed: int) -> list[Int[Tensor, " _"]]:
    """A random half of the nodes for training, a quarter each for validation and test."""
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    return list(order.tensor_split([num_nodes // 2, 3 * num_nodes // 4]))


def train(
    model: nn.Module,
    predict: Callable[[], Float[Tensor, "nodes classes"]],
    labels: Int[Tensor, " nodes"],
    parts: Sequence[Int[Tensor, " _"]],
    optimiser: torch.optim.Optimizer,
    config: HypergraphConfig,
) -> tuple[list[float], int]:
    """Accuracies of the parts where the validation part's is best (ties: the lower loss there), and epochs run."""
    best: tuple[float, float] = (-1.0, 0.0)
    accuracies, waited, epochs = [0.0] * len(parts), 0, 0
    while epochs < config.epochs and waited < config.patience:
        model.train()
        loss = F.cross_entropy(predict()[parts[0]], labels[parts[0]])
        optimiser.zero_grad()
        torch.autograd.backward([loss])
        optimiser.step()
        model.eval()
        with torch.no_grad():
            logits = predict()
            right = (logits.argmax(1) == labels).double()
            now = [float(right[part].mean()) for part in parts]
            score = (now[1], -float(F.cross_entropy(logits[parts[1]], labels[parts[1]])))
        epochs, waited = epochs + 1, waited + 1
        if score > best:
            best, accuracies, waited = score, now, 0
    return accuracies, epochs


def build(
    data: LabelledHypergraph, system: System, config: HypergraphConfig, device: torch.device
) -> tuple[nn.Module, Callable[[], Float[Tensor, "nodes classes"]]]:
    """A system and the function that gives the logits of all nodes; in training it drops features."""
    features = F.normalize(data.node_features, p=1, dim=1).to(device)
    if system.startswith("tokengt"):
        order = 3 if system == "tokengt_order_3" else None
        batch = GraphBatch.collate([hypergraph_tokens(data, order)])
        tokengt = TokenGT(model_config(batch, data.num_classes, config))
        # One graph seen again and again: its identifiers are computed once.
        ids = identify(batch, tokengt.config.identifiers)
        node_ids = None if ids is None else ids.nodes.float().to(device)
        tokengt, batch = tokengt.to(device), batch.to(device)

        def tokengt_logits() -> Tensor:
            seen = drop_features(batch, config.dropout) if tokengt.training else batch
            out: Tensor = tokengt(seen, node_ids=node_ids)
            return out

        return tokengt, tokengt_logits
    mixing = normalised_adjacency(data).to(device) if system == "clique_gcn" else None
    network = TwoLayers(features.shape[1], config.width, data.num_classes, config.dropout, mixing).to(device)
    return network, lambda: network(features)


def hypergraph_tokens(data: LabelledHypergraph, order: int | None) -> Graph:
    """The hypergraph with the mean of its members' features on every hyperedge; tuples up to ``order`` nodes."""
    features = F.normalize(data.node_features, p=1, dim=1)
    means = torch.stack([features[list(members)].mean(0) for members in data.hyperedges])
    return Graph.from_hyperedges(data.hyperedges, features, means, order=order)


def model_config(batch: GraphBatch, num_classes: int, config: HypergraphConfig) -> TokenGTConfig:
    """TokenGT for the nodes of one graph: SEB, fixed signs, FAVOR+ or softmax."""
    return TokenGTConfig(
        dim=config.width,
        tokens=TokensConfig.for_batch(batch),
        identifiers=LaplacianIds(dim=config.id_dim, which="both_ends", sign_flip=False),
        encoder=EncoderConfig(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            mlp_dim=2 * config.width,
            attention=AttentionConfig(kind=config.attention),
            mlp_dropout=config.dropout,
            residual_dropout=config.dropout,
            input_dropout=config.dropout,
            input_norm=True,
            sparse_basis_residual=True,
        ),
        head=HeadConfig(level="node", out_dim=num_classes),
    )


def drop_features(batch: GraphBatch, rate: float) -> GraphBatch:
    """Dropout of single features, as the baselines have on their input."""
    nodes, tuples, hyperedges = (
        None if features is None else F.dropout(features, rate)
        for features in (batch.node_features, batch.edge_features, batch.hyperedge_features)
    )
    return replace(batch, node_features=nodes, edge_features=tuples, hyperedge_features=hyperedges)


def normalised_adjacency(data: LabelledHypergraph) -> Float[Tensor, "nodes nodes"]:
    """(D + I)^(-1/2) (A + I) (D + I)^(-1/2) of the clique expansion, sparse (Kipf and Welling 2017)."""
    nodes = data.num_nodes
    pairs = adjacency_pairs(GraphBatch.collate([Graph.from_hyperedges(data.hyperedges, num_nodes=nodes)]))
    index = torch.unique(torch.cat([pairs, pairs.flip(0), torch.arange(nodes).expand(2, -1)], 1), dim=1)
    scale = torch.bincount(index[0], minlength=nodes).float().rsqrt()
    values = scale[index[0]] * scale[index[1]]
    # Asked for in this way: an argument of the same name does not keep torch 2.11 from a warning.
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(index, values, (nodes, nodes)).coalesce()


class TwoLayers(nn.Module):
    """Dropout, Linear, ReLU, Dropout, Linear; with ``mixing`` each linear map is followed by it (a GCN)."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, mixing: Tensor | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.dropout, self.mixing = dropout, mixing

    def forward(self, x: Float[Tensor, "nodes inputs"]) -> Float[Tensor, "nodes outputs"]:
        hidden = F.relu(self._mix(self.first(F.dropout(x, self.dropout, self.training))))
        return self._mix(self.second(F.dropout(hidden, self.dropout, self.training)))

    def _mix(self, x: Tensor) -> Tensor:
        return x if self.mixing is None else torch.sparse.mm(self.mixing, x)
