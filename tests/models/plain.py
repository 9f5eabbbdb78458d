"""One graph, node by node: what the tests of models over pairs of nodes compare with. Slow, and easy to read."""

import itertools
import math

import torch
from torch import Tensor, nn

from tokengt import Graph
from tokengt.models.features import FeatureEncoder


def distances(graph: Graph) -> list[list[int]]:
    """Steps from i to j along edges as they are listed, by Floyd and Warshall; -1 without a path."""
    far = 10**6
    found = [[0 if i == j else far for j in range(graph.num_nodes)] for i in range(graph.num_nodes)]
    for u, v in graph.edge_index.T.tolist():
        found[u][v] = min(found[u][v], 1)
    for k, i, j in itertools.product(range(graph.num_nodes), repeat=3):
        found[i][j] = min(found[i][j], found[i][k] + found[k][j])
    return [[-1 if d == far else d for d in row] for row in found]


def edges_between(graph: Graph, i: int, j: int) -> list[int]:
    """The listed edges from i to j."""
    return [e for e, (u, v) in enumerate(graph.edge_index.T.tolist()) if (u, v) == (i, j)]


def shortest_paths(graph: Graph, hops: list[list[int]], i: int, j: int) -> list[list[int]]:
    """All shortest paths from i to j as lists of listed edges."""
    if i == j:
        return [[]]
    paths = []
    for e, (u, v) in enumerate(graph.edge_index.T.tolist()):
        if u == i and v != i and hops[v][j] >= 0 and hops[v][j] + 1 == hops[i][j]:
            paths += [[e, *rest] for rest in shortest_paths(graph, hops, v, j)]
    return paths


def features_of(encoder: FeatureEncoder, features: Tensor | None, row: int) -> Tensor | None:
    """One row of features, embedded: the rows of a table that its categories name, or a linear map of its floats."""
    if features is None:
        return None
    if encoder.table is not None:
        names = features[row].long() + encoder.offsets
        return torch.stack([encoder.table.weight[name] for name in names.tolist()]).sum(0)
    assert encoder.linear is not None
    return encoder.linear.weight @ features[row].to(encoder.linear.weight.dtype)


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """exp(s) / sum of exp(s), one number at a time."""
    raised = [torch.exp(score) for score in scores]
    return [each / sum(raised) for each in raised]


def linear(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.Linear)
    return module.weight @ x + module.bias


def norm(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.LayerNorm)
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + module.eps) * module.weight + module.bias


def of_head(x: Tensor, head: int, heads: int) -> Tensor:
    width = len(x) // heads
    return x[head * width : (head + 1) * width]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def elu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.exp(x) - 1)


def shaken(model: nn.Module, seed: int = 0, scale: float = 0.3) -> nn.Module:
    """The model in float64 and evaluation mode, its weights moved: so that norms, biases and all terms matter."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model
