"""Where a model looks: attention of paracetamol's tokens after a few seconds on the bundled ESOL solubilities."""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib
import torch

from tokengt import GraphBatch, TokenGT, from_smiles, presets
from tokengt.data.datasets import esol
from tokengt.interop.smiles import ATOM_VOCABULARY

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SYMBOLS = {6: "C", 7: "N", 8: "O"}


def train() -> TokenGT:
    torch.manual_seed(0)
    smiles, solubility = esol()
    graphs = GraphBatch.collate([from_smiles(s) for s in smiles[:384]])
    model = TokenGT(replace(presets.small(), encoder=replace(presets.small().encoder, num_layers=2, num_heads=4)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(8):
        for chosen in torch.randperm(graphs.num_graphs).split(48):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(model(graphs.select(chosen)), solubility[chosen]).backward()
            optimiser.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/attention_maps.png"))
    options = parser.parse_args()
    model, molecule = train(), from_smiles("CC(=O)Nc1ccc(O)cc1")
    maps = model.attention_maps(molecule)  # maps[layer][graph] is [heads, tokens, tokens]
    tokens = model.encode(molecule)
    atoms = [SYMBOLS[ATOM_VOCABULARY["atomic_number"][row]] for row in molecule.node_features[:, 0].tolist()]
    ends = tokens.endpoints.tolist()
    names = ["[graph]" if u < 0 else f"{atoms[u]}{u}" if u == v else f"{atoms[u]}{u}-{atoms[v]}{v}" for u, v in ends]
    figure, axes = plt.subplots(len(maps), 4, figsize=(16, 8.5), layout="constrained")
    for layer, (row, weights) in enumerate(zip(axes, (of_graph[0] for of_graph in maps), strict=True)):
        for head, (axis, weight) in enumerate(zip(row, weights, strict=True)):
            axis.imshow(weight, vmin=0, cmap="viridis")
            axis.set_title(f"layer {layer}, head {head}")
            axis.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
            axis.set_yticks(range(len(names)), names, fontsize=6)
        best = weights.mean(0)[0, 1:].topk(3).indices.tolist()
        print(f"layer {layer}: [graph] looks most at {', '.join(names[1 + place] for place in best)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=100)
    print(f"{len(maps)} layers x 4 heads of {len(names)} x {len(names)} tokens: {options.out}")


if __name__ == "__main__":
    main()
