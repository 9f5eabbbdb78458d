"""Molecules to packed arrays, against what RDKit alone costs one core: its parser and its property getters.

The floor, the least that any such program must do, parses every SMILES and calls each getter once per atom or bond, in
the quicker of the two ways RDKit has to list atoms, and throws the values away. ``pack_molecules`` does the same work
and keeps the arrays. ``prepare`` is the whole command from a CSV to a checked store on disk, with one worker process
and with two.

    TOKENGT_DATA=/path/to/data python benchmarks/prepare.py
"""

import csv
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from molecules import DATA, interleaved, median_ratio
from rdkit import Chem

from tokengt.data.datasets import esol
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.interop.molecules import pack_molecules

REPEATS = 9
# So many rows that starting the workers takes a small part of the time.
PREPARED_ROWS, PREPARED_REPEATS = 40_000, 3
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


def prepare_seconds(texts: list[str], workers: int) -> float:
    """Wall time of the whole command, on as many rows as the workers need to be busy."""
    rows = (texts * (PREPARED_ROWS // len(texts) + 1))[:PREPARED_ROWS]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "molecules.csv"
        source.write_text("smiles\n" + "\n".join(rows) + "\n")
        began = time.perf_counter()
        store = prepare(source, Path(folder) / "store", Recipe(smiles="smiles"), workers=workers, progress=False)
        assert len(store) == len(rows)
        return time.perf_counter() - began


def measure() -> list[dict[str, Any]]:
    """One row per system; ``ratio_to_rdkit`` is its time over what RDKit's parser and getters take on one core."""
    dataset, texts = read_smiles()
    assert len(pack_molecules(texts).kept) == len(texts)
    taken = interleaved(
        {"rdkit alone": lambda: rdkit_alone(texts), "tokengt pack_molecules": lambda: pack_molecules(texts)}, REPEATS
    )
    rows = [
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
    alone = rows[0]["graphs_per_s"]
    for workers in (1, 2):
        speed = PREPARED_ROWS / statistics.median(prepare_seconds(texts, workers) for _ in range(PREPARED_REPEATS))
        rows.append(
            {
                "benchmark": "prepare",
                "dataset": dataset,
                "shape": f"{PREPARED_ROWS:,} rows of CSV to a store",
                "system": f"tokengt prepare, {workers} worker{'s' * (workers > 1)}",
                "threads": workers,
                "graphs_per_s": speed,
                "ratio_to_rdkit": alone / speed,
            }
        )
    return rows


def main() -> None:
    for row in measure():
        print(
            f"{row['system']:24s} {row['shape']} ({row['dataset']}): {row['graphs_per_s']:8,.0f} molecules/s, "
            f"{row['ratio_to_rdkit']:.2f}x the time of RDKit's parser and getters"
        )


if __name__ == "__main__":
    main()
