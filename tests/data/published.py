"""Tiny data sets in the layouts of the public files, with molecules and labels worked out by hand."""

import gzip
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch

# Rows of PCQM4Mv2: SMILES and gap. Row 4 cannot be read; rows 5 to 8 have no published label, and 7 cannot be read.
PCQM = [
    ("CCO", "1.0"),
    ("CCN", "2.0"),
    ("CCC", "3.0"),
    ("CCCC", "4.0"),
    ("not a molecule", "5.0"),
    ("CO", ""),
    ("CN", ""),
    ("C1CC", ""),
    ("CF", ""),
]
PCQM_SPLIT = {"train": [0, 1, 4], "valid": [2, 3], "test-dev": [8, 5, 7], "test-challenge": [6]}


def pcqm_folder(
    root: Path, rows: list[tuple[str, str]] | None = None, split: dict[str, list[int]] | None = None
) -> Path:
    """``root/pcqm4m-v2`` as OGB's archive unpacks to; the lists of rows are arrays, as in the real file."""
    folder = root / "pcqm4m-v2"
    (folder / "raw").mkdir(parents=True)
    lines = ["idx,smiles,homolumogap"] + [f"{n},{smiles},{gap}" for n, (smiles, gap) in enumerate(rows or PCQM)]
    (folder / "raw" / "data.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    lists = {part: np.array(numbers) for part, numbers in (split or PCQM_SPLIT).items()}
    torch.save(lists, folder / "split_dict.pt")
    return folder


def pcqm_archive(folder: Path) -> bytes:
    return zipped({f"pcqm4m-v2/{name}": (folder / name).read_bytes() for name in ("raw/data.csv.gz", "split_dict.pt")})


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def zinc_files() -> dict[str, bytes]:
    """All of ZINC with two or three molecules per part, and the lists of those that are in the 12,000."""

    def molecule(atoms: list[int], bonds: list[tuple[int, int, int]], y: float) -> dict[str, object]:
        matrix = torch.zeros(len(atoms), len(atoms), dtype=torch.int64)
        for first, second, kind in bonds:
            matrix[first, second] = matrix[second, first] = kind
        return {
            "num_atom": len(atoms),
            "atom_type": torch.tensor(atoms),
            "bond_type": matrix,
            "logP_SA_cycle_normalized": torch.tensor([y]),
        }

    chain, ring = [(0, 1, 1), (1, 2, 2)], [(0, 1, 1), (1, 2, 1), (0, 2, 3)]
    parts = {
        "train": [molecule([0, 1, 0], chain, 0.5), molecule([0], [], 9.0), molecule([2, 0, 0], ring, -1.0)],
        "val": [molecule([0, 0], [(0, 1, 3)], 1.5)],
        "test": [molecule([5, 0], [(0, 1, 1)], 9.0), molecule([4, 0], [(0, 1, 2)], 2.5)],
    }
    archive = zipped({f"molecules/{name}.pickle": pickle.dumps(value) for name, value in parts.items()})
    return {
        "/molecules.zip": archive,
        "/train.index": b"2,0",
        "/val.index": b"0",
        "/test.index": b"1",
    }


def pcba_archive(targets: tuple[str, ...]) -> bytes:
    """Three molecules; the first has labels 1 and 0 and gaps, the others are all 0."""
    first = ["1.0", "0.0", *[""] * (len(targets) - 2)]
    rows = [[*first, "CCO", "CID1"], [*["0.0"] * len(targets), "CCN", "CID2"], [*["0"] * len(targets), "CCC", "CID3"]]
    table = "\n".join(",".join(row) for row in [[*targets, "smiles", "mol_id"], *rows])
    lists = {"train": b"2\n", "valid": b"0\n", "test": b"1\n"}
    files = {f"pcba/split/scaffold/{part}.csv.gz": gzip.compress(rows) for part, rows in lists.items()}
    return zipped({**files, "pcba/mapping/mol.csv.gz": gzip.compress(table.encode())})


def peptides_files() -> dict[str, bytes]:
    rows = ['0,CCO,A,"[1, 0, 0, 0, 0, 0, 0, 0, 0, 1]",4', '1,CCN,B,"[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]",5']
    table = "\n".join([",smiles,peptide_seq,labels,identifier", *rows, '2,CCC,C,"[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",6'])
    lists = {"train": np.array([2]), "val": np.array([0]), "test": np.array([1])}
    return {
        "/peptide_multi_class_dataset.csv.gz": gzip.compress(table.encode()),
        "/splits_random_stratified_peptide.pickle": pickle.dumps(lists, protocol=2),
    }
