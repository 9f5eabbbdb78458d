"""Molecules to packed arrays on one core, against what RDKit alone costs: its parser and its property getters.

The floor parses every SMILES and calls each getter once an atom or bond, in the quicker of the two ways RDKit has to
list atoms, and throws the values away. ``pack_molecules`` does the same work and keeps the arrays.

    TOKENGT_DATA=/path/to/data python benchmarks/prepare.py
"""

import csv
import os
import statistics
from pathlib import Path
from typing import Any

from molecules import DATA, interleaved, median_ratio
from rdkit import Chem

from tokengt.data.datasets import esol
from tokengt.interop.molecules import pack_molecules

REPEATS = 9
FILES = ("pcqm4mv2_train_first1999.csv", "pcqm4mv2_valid_1000.csv")


def read_smiles() -> tuple[str, list[str]]:
    """The bundled ESOL and, where they are, the two samples of PCQM4Mv2: 4,127 molecules."""
    texts, names = list(esol()[0]), ["ESOL"]
    folder = Path(os.environ.get("TOKENGT_DATA", DATA)) / "molecules"
    for file in (folder / name for name in FILES):
        if file.exists():
            with file.open(newline="") as lines:
                texts += [row["smiles"] for row in csv.DictReader(lines)]
            names = ["ESOL + PCQM4Mv2"]
    return names[0], texts


def rdkit_alone(texts: list[str]) -> None:
    for text in texts:
        molecule = Chem.MolFromSmiles(text)
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            atom.GetAtomicNum()
            atom.GetChiralTag()
            atom.GetTotalDegree()
            atom.GetFormalCharge()
            atom.GetTotalNumHs()
            atom.GetNumRadicalElectrons()
            atom.GetHybridization()
            atom.GetIsAromatic()
            atom.IsInRing()
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            bond.GetBeginAtomIdx()
            bond.GetEndAtomIdx()
            bond.GetBondType()
            bond.GetStereo()
            bond.GetIsConjugated()


def measure() -> list[dict[str, Any]]:
    """One row a system; ``ratio_to_rdkit`` is its time over that of RDKit's parser and getters alone."""
    dataset, texts = read_smiles()
    assert len(pack_molecules(texts).kept) == len(texts)
    taken = interleaved(
        {"rdkit alone": lambda: rdkit_alone(texts), "tokengt pack_molecules": lambda: pack_molecules(texts)}, REPEATS
    )
    return [
        {
            "benchmark": "prepare",
            "dataset": dataset,
            "shape": f"{len(texts):,} molecules",
            "system": name,
            "threads": 1,
            "graphs_per_s": len(texts) / statistics.median(seconds),
            "ratio_to_rdkit": median_ratio(seconds, taken["rdkit alone"]),
        }
        for name, seconds in taken.items()
    ]


def main() -> None:
    for row in measure():
        print(
            f"{row['system']:24s} {row['shape']} ({row['dataset']}): {row['graphs_per_s']:8,.0f} molecules/s, "
            f"{row['ratio_to_rdkit']:.2f}x the time of RDKit's parser and getters"
        )


if __name__ == "__main__":
    main()
