"""Graphs for tests: odd ones by hand, random ones, and a hypothesis strategy over all of them."""

import torch
from hypothesis import strategies as st

from tokengt import (
    EncoderConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    HeadConfig,
    IdentifierConfig,
    LaplacianIds,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)

CATEGORIES = (4, 3)
EDGE_WIDTH = 3


def random_graph(nodes: int, edges: int, seed: int = 0, *, undirected: bool = False) -> Graph:
    """Two category columns per node, three floats per edge; self-loops and repeated edges happen."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(0, size, (nodes,), generator=generator) for size in CATEGORIES]
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    features = torch.randn(edges, EDGE_WIDTH, generator=generator)
    if undirected:
        index = index[:, index[0] != index[1]]
        features = features[: index.shape[1]]
        index, features = torch.cat([index, index.flip(0)], 1), torch.cat([features, features])
    return Graph(torch.stack(columns, 1), index, features)


def odd_graphs() -> list[Graph]:
    """One node, no edges, a self-loop, repeated edges, two components, and two ordinary ones."""
    return [
        random_graph(1, 0, 1),
        random_graph(6, 0, 2),
        _with_edges(2, [[0, 1, 1], [0, 1, 1]], 3),
        _with_edges(3, [[0, 0, 1, 1], [1, 1, 0, 0]], 4),
        _with_edges(6, [[0, 1, 3, 4], [1, 0, 4, 3]], 5),
        random_graph(9, 20, 6),
        random_graph(17, 30, 7),
    ]


def _with_edges(nodes: int, index: list[list[int]], seed: int) -> Graph:
    base = random_graph(nodes, len(index[0]), seed)
    return Graph(base.node_features, torch.tensor(index), base.edge_features)


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 8, max_edges: int = 14) -> Graph:
    nodes = draw(st.integers(1, max_nodes))
    edges = draw(st.integers(0, max_edges))
    return random_graph(nodes, edges, draw(st.integers(0, 2**20)))


def hypergraph(seed: int = 0) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    return Graph.from_hyperedges(
        [[0, 1], [1, 2, 3], [4], [0, 2, 3, 4, 5]],
        node_features=torch.randn(6, 2, generator=generator),
        hyperedge_features=torch.randn(4, 3, generator=generator),
    )


def tokens_config(**options: object) -> TokensConfig:
    return TokensConfig(
        node_features=FeatureSpec(categories=CATEGORIES),
        edge_features=FeatureSpec(width=EDGE_WIDTH),
        **options,  # type: ignore[arg-type]
    )


def small_model(
    *,
    dim: int = 24,
    tokens: TokensConfig | None = None,
    ids: IdentifierConfig | None = None,
    encoder: EncoderConfig | None = None,
    head: HeadConfig | None = None,
    structure: StructureConfig | None = None,
    dtype: torch.dtype = torch.float32,
) -> TokenGT:
    """A two-layer model in evaluation mode whose weights are large enough for attention to matter."""
    config = TokenGTConfig(
        dim=dim,
        tokens=tokens or tokens_config(),
        identifiers=ids or LaplacianIds(dim=5),
        encoder=encoder or EncoderConfig(num_layers=2, num_heads=3, mlp_dim=32),
        head=head or HeadConfig(out_dim=2),
        structure=structure or StructureConfig(),
    )
    torch.manual_seed(0)
    model = TokenGT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def random_ids(batch: GraphBatch | Graph, dim: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(batch.num_nodes, dim, dtype=dtype)
