"""A model of your own: a plain module on packed graphs, trained, tested and described by ``tokengt.train``.

Its forward takes a :class:`tokengt.GraphBatch`, all graphs of a batch packed one after another, and gives one row per
graph. Splits, scaling, checkpoints, the test and the model card come by themselves.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import tokengt
from tokengt import GraphBatch
from tokengt.data.datasets import bundled
from tokengt.interop.smiles import ATOM_CATEGORIES


class OneRound(nn.Module):
    """Every atom adds up its neighbours once; a molecule is the mean of its atoms."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(size, dim) for size in ATOM_CATEGORIES)
        self.mix = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 1)

    def embed(self, batch: GraphBatch) -> Tensor:
        """[graphs, dim]: what the head reads."""
        columns = batch.node_features.long().T
        h = sum(table(column) for table, column in zip(self.atoms, columns, strict=True))
        source, target = batch.edge_index  # node numbers over the whole batch
        heard = torch.zeros_like(h).index_add(0, target, h[source])
        h = torch.relu(self.mix(h + heard))
        summed = h.new_zeros(len(batch), h.shape[1]).index_add(0, batch.nodes.ids, h)
        return summed / batch.nodes.lengths[:, None]

    def forward(self, batch: GraphBatch) -> Tensor:
        """[graphs, 1]: one row per graph, one column per target."""
        return self.head(self.embed(batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/own_model"))
    args = parser.parse_args()

    settings = {"training.epochs": args.epochs, "training.learning_rate": 1e-2}
    data = bundled("esol.csv.xz")
    tokengt.train(data, args.out, target="logSolubility", model=OneRound(), settings=settings)
    # The run folder holds the weights and the name of the class; the class itself is yours to bring.
    run = tokengt.load(args.out, model=OneRound())
    print(f"all of ESOL: {tokengt.evaluate(run, data, quiet=True)}")
    for name, smiles in {"ethanol": "CCO", "anthracene": "c1ccc2cc3ccccc3cc2c1"}.items():
        print(f"{name:10} {run.predict([smiles]).mean[0, 0]:6.2f}")


if __name__ == "__main__":
    main()
