"""Give it a k-IGN, get a Transformer: weights that compute what a trained 2-IGN computes, written down, not trained."""

import argparse
import warnings
from pathlib import Path

import torch

from tokengt import GraphBatch
from tokengt.ragged import Segments
from tokengt.theory.construction import compile_ign, ign_bound, logit_gap, tensor_graph
from tokengt.theory.ign import IGNConfig, InvariantGraphNetwork
from tokengt.theory.tuples import Tuples

NODES = 7


def random_graphs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Adjacency matrices [count, n, n, 1], and for each graph how many pairs of edges meet in a node [count, 1]."""
    upper = (torch.rand(count, NODES, NODES) < 0.4).double().triu(1)
    adjacency = upper + upper.mT
    degree = adjacency.sum(2)
    return adjacency[..., None], (degree * (degree - 1) / 2).sum(1, keepdim=True)


def train(graphs: torch.Tensor, wedges: torch.Tensor) -> InvariantGraphNetwork:
    config = IGNConfig(order=2, dims=(1, 8, 8), activation="gelu", mlp_dims=(16,), expected_nodes=NODES)
    ign = InvariantGraphNetwork(config).double()
    tuples = Tuples.dense(Segments.uniform(len(graphs), NODES), order=2)
    optimiser = torch.optim.Adam(ign.parameters(), lr=1e-2)
    for _ in range(150):
        loss = torch.nn.functional.mse_loss(ign(graphs.flatten(0, 2), tuples), wedges)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return ign


def plot(rows: list[tuple[float, float, float]], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    sharpness, errors, bounds = zip(*rows, strict=True)
    figure, axis = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    axis.semilogy(sharpness, bounds, "--", color="tab:grey", label="bound, for every |X| <= 1")
    axis.semilogy(sharpness, errors, "o-", color="tab:blue", label="measured, largest of 50 graphs")
    axis.set_xlabel("sharpness a")
    axis.set_ylabel("|Transformer - 2-IGN|")
    axis.grid(alpha=0.3)
    axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/compile_ign.png"))
    options = parser.parse_args()
    torch.manual_seed(0)
    graphs, wedges = random_graphs(250)
    ign = train(graphs[:200], wedges[:200]).requires_grad_(False)
    graphs, wedges = graphs[200:], wedges[200:]
    wanted = ign(graphs.flatten(0, 2), Tuples.dense(Segments.uniform(len(graphs), NODES), order=2))
    print(f"2-IGN, pairs of meeting edges: off by {(wanted - wedges).abs().mean():.2f} of {wedges.mean():.2f}")

    batch = GraphBatch.collate([tensor_graph(graph) for graph in graphs])  # an edge for every pair of nodes
    rows = []
    for sharpness in (20.0, 40.0, 60.0, 80.0, 100.0, 120.0, 140.0, 160.0, 180.0, 200.0, 300.0, 400.0):
        with warnings.catch_warnings():
            # The curve begins where the sharpness is too small on purpose.
            warnings.simplefilter("ignore")
            model = compile_ign(ign, NODES, sharpness, input_bound=1.0)
        error = float((model(batch).detach() - wanted).abs().max())
        rows.append((sharpness, error, ign_bound(ign, NODES, sharpness, input_bound=1.0)))
        gap = logit_gap(2, NODES, sharpness, "one_hot")
        print(f"sharpness {sharpness:3.0f}, logit gap {gap:4.1f}: off by {error:.1e}, at most {rows[-1][2]:.1e}")
    count = sum(weight.numel() for weight in ign.parameters()), sum(weight.numel() for weight in model.parameters())
    heads = model.config.encoder.num_heads
    print(f"{count[0]:,} weights of the 2-IGN, {count[1]:,} of a {type(model).__name__} with {heads} heads")
    plot(rows, options.out)


if __name__ == "__main__":
    main()
