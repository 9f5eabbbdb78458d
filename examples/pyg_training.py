"""A list of PyTorch Geometric graphs to a trained run: how many triangles is each node in?

The rows of ``y`` say what a label belongs to: one row per graph, one per node or one per edge.
"""

import argparse
from pathlib import Path

import torch
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph, to_dense_adj

import tokengt

SETTINGS = {
    "model.dim": 48,
    "model.encoder.num_layers": 3,
    # The sparse basis residual sums a node's edges; attention averages, and finds it hard to count.
    "model.encoder.sparse_basis_residual": True,
    "training.learning_rate": 3e-3,
}


def random_graph(nodes: int) -> Data:
    edge_index = erdos_renyi_graph(nodes, 0.35)
    adjacency = to_dense_adj(edge_index, max_num_nodes=nodes)[0]
    triangles = (adjacency @ adjacency * adjacency).sum(1) / 2
    return Data(edge_index=edge_index, num_nodes=nodes, y=triangles)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/triangles"))
    args = parser.parse_args()

    seed_everything(0)
    graphs = [random_graph(int(n)) for n in torch.randint(6, 13, (500,))]
    known, new = graphs[:400], graphs[400:]
    tokengt.train(known, args.out, settings={**SETTINGS, "training.epochs": args.epochs})

    told = torch.from_numpy(tokengt.load(args.out).predict(new).mean[:, 0])
    truth = torch.cat([graph.y for graph in new])
    error, of_mean = ((guess - truth).abs().mean() for guess in (told, truth.mean()))
    print(f"{len(new)} new graphs, {len(told)} nodes: off by {error:.2f} triangles; their mean is off by {of_mean:.2f}")


if __name__ == "__main__":
    main()
