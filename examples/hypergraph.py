"""Hypergraphs: groups of any size as pooled tokens, and groups of up to three nodes as ordered triples.

One node is red. The label is the number of groups it belongs to: nothing but membership tells it.
"""

import torch

from tokengt import EncoderConfig, Graph, GraphBatch, HeadConfig, OrfIds, TokenGT, TokenGTConfig, TokensConfig


def random_hypergraph(order: int | None, generator: torch.Generator) -> tuple[Graph, float]:
    """Six nodes and four groups of two or three; with ``order`` 3 every group becomes its ordered triples."""
    sizes = torch.randint(2, 4, (4,), generator=generator).tolist()
    groups = [torch.randperm(6, generator=generator)[:size].tolist() for size in sizes]
    red = int(torch.randint(0, 6, (1,), generator=generator))
    colour = (torch.arange(6) == red).long()[:, None]
    return Graph.from_hyperedges(groups, node_features=colour, order=order), float(
        sum(red in group for group in groups)
    )


def run(name: str, order: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    graphs, labels = zip(*(random_hypergraph(order, generator) for _ in range(640)), strict=True)
    everything, y = GraphBatch.collate(graphs), torch.tensor(labels)
    torch.manual_seed(0)
    config = TokenGTConfig(
        dim=48,
        tokens=TokensConfig.for_batch(everything),  # feature sizes, order, hyperedges
        identifiers=OrfIds(dim=8),
        encoder=EncoderConfig(num_layers=2, num_heads=4, mlp_dim=96, input_norm=True, sparse_basis_residual=True),
        head=HeadConfig(readout="sum"),
    )
    model = TokenGT(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(20):
        for chosen in torch.randperm(512).split(64):
            loss = torch.nn.functional.mse_loss(model(everything.select(chosen))[:, 0], y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    test = torch.arange(512, 640)
    found = model.predict(everything.select(test)).mean[:, 0]
    error, baseline = (found - y[test]).abs().mean(), (y[test] - y[:512].mean()).abs().mean()
    print(f"{name}: {graphs[0]}")
    print(f"  test error {error:.3f}, of the mean {baseline:.3f}")


def main() -> None:
    run("one pooled token per group", None)
    run("ordered triples", 3)


if __name__ == "__main__":
    main()
