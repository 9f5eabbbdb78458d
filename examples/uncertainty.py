"""Predictions with orthogonal random identifiers: one draw, the spread over K draws, and what averaging buys.

A small model learns solubilities of the bundled ESOL molecules for a few seconds. At evaluation a draw is a function of
the numbered graph. With atoms in the order of the text, one molecule written in two ways is two draws, and averaging
brings the two together. (In the canonical order, the default, they are one graph, and so one draw.)
"""

from dataclasses import replace

import torch

from tokengt import GraphBatch, OrfIds, TokenGT, from_smiles, presets
from tokengt.data.datasets import esol
from tokengt.interop.molecules import MoleculePolicy

SPELLED = MoleculePolicy(atoms="spelled")
SPELLINGS = {
    "ethanol": ("CCO", "OCC"),
    "paracetamol": ("CC(=O)Nc1ccc(O)cc1", "Oc1ccc(NC(C)=O)cc1"),
    "naphthalene": ("c1ccc2ccccc2c1", "c12ccccc1cccc2"),
}


def train() -> TokenGT:
    torch.manual_seed(0)
    smiles, solubility = esol()
    graphs = GraphBatch.collate([from_smiles(s) for s in smiles[:384]])
    base = presets.small()
    encoder = replace(base.encoder, num_layers=2, drop_path=0.0)
    model = TokenGT(replace(base, identifiers=OrfIds(dim=32), encoder=encoder))
    torch.nn.init.constant_(model.head.project.bias, float(solubility.mean()))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(10):
        for chosen in torch.randperm(graphs.num_graphs).split(48):
            loss = torch.nn.functional.mse_loss(model(graphs.select(chosen)), solubility[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model


def main() -> None:
    model = train()
    print("log solubility (mol/l), two spellings of each molecule")
    for draws in (1, 48):
        for name, spellings in SPELLINGS.items():
            told = model.predict([from_smiles(s, SPELLED) for s in spellings], draws=draws)
            mean = told.mean[:, 0].tolist()
            spreads = ["none"] * len(mean) if told.std is None else [f"{s:.3f}" for s in told.std[:, 0].tolist()]
            first, second = (f"{m:6.3f} (spread {s})" for m, s in zip(mean, spreads, strict=True))
            print(f"{draws:2} draws  {name:12} {first}   {second}   apart {abs(mean[0] - mean[1]):.3f}")


if __name__ == "__main__":
    main()
