"""Laplacian node identifiers of real molecules: batched, against a NumPy loop and PyTorch Geometric.

All three compute the 16 lowest eigenvectors of the normalised Laplacian of the same molecules, on the CPU, in
one run. Ours are in float64 and in the canonical basis (of the signs and rotations that eigenvectors may have, the
one that a fixed rule chooses); that work is inside the measured time. PyG drops the trivial eigenvector and needs more
nodes than eigenvectors, so it is asked for ``min(16, n - 2)`` and molecules of fewer than four atoms are left out for
all. Reading SMILES and building edge lists is outside.

    TOKENGT_DATA=/path/to/data python benchmarks/laplacian.py
"""

import csv
import io
import lzma
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem, rdBase
from torch import Tensor

import tokengt
from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.structure.laplacian import laplacian_eigenvectors

COUNT = 16
REPEATS = 7
MIN_NODES = 4


def read_smiles() -> tuple[str, list[str]]:
    """PCQM4Mv2 molecules when ``TOKENGT_DATA`` holds them, the bundled ESOL otherwise."""
    root = os.environ.get("TOKENGT_DATA")
    if root:
        for path in (Path(root), Path(root) / "molecules"):
            file = path / "pcqm4mv2_train_first1999.csv"
            if file.exists():
                return "PCQM4Mv2", [row["smiles"] for row in csv.DictReader(file.open())]
    bundled = Path(tokengt.__file__).parent / "data" / "bundled" / "esol.csv.xz"
    with lzma.open(bundled) as raw:
        return "ESOL", [row["smiles"] for row in csv.DictReader(io.TextIOWrapper(raw))]


def bond_graph(smiles: str) -> Graph | None:
    """Atoms and bonds, both directions; None for a molecule that RDKit refuses or that is too small."""
    molecule: Any = Chem.MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() < MIN_NODES:
        return None
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    index = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    return Graph(edge_index=torch.cat([index, index.flip(0)], 1), num_nodes=molecule.GetNumAtoms())


def numpy_loop(graphs: list[tuple[int, np.ndarray]]) -> list[np.ndarray]:
    """What a user writes: one dense Laplacian and one ``eigh`` per graph."""
    out = []
    for n, index in graphs:
        adjacency = np.zeros((n, n))
        adjacency[index[0], index[1]] = 1.0
        scale = 1.0 / np.sqrt(np.clip(adjacency.sum(1), 1.0, None))
        laplacian = np.eye(n) - scale[:, None] * adjacency * scale[None, :]
        _, vectors = np.linalg.eigh(laplacian)
        ids = np.zeros((n, COUNT))
        ids[:, : min(n, COUNT)] = vectors[:, :COUNT]
        out.append(ids)
    return out


def pyg_loop(graphs: list[Any]) -> list[Tensor]:
    from torch_geometric.transforms import AddLaplacianEigenvectorPE

    transforms = {k: AddLaplacianEigenvectorPE(k) for k in range(1, COUNT + 1)}
    return [transforms[min(COUNT, g.num_nodes - 2)](g.clone()).laplacian_eigenvector_pe for g in graphs]


def measure() -> list[dict[str, Any]]:
    """One row per system; ``ratio_to_batched`` is how many times longer than ours it takes (ours: 1)."""
    from torch_geometric.data import Data

    rdBase.DisableLog("rdApp.*")
    shape, smiles = read_smiles()
    graphs = [g for g in map(bond_graph, smiles) if g is not None]
    batch = GraphBatch.collate(graphs)
    arrays = [(g.num_nodes, g.edge_index.numpy()) for g in graphs]
    data = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes) for g in graphs]
    systems: dict[str, Callable[[], object]] = {
        "tokengt batched": lambda: laplacian_eigenvectors(batch, COUNT),
        "numpy loop": lambda: numpy_loop(arrays),
        "pyg AddLaplacianEigenvectorPE": lambda: pyg_loop(data),
    }
    seconds = _interleaved(systems)
    ours = seconds["tokengt batched"]
    return [
        {
            "benchmark": "laplacian",
            "shape": f"{shape}, {len(graphs)} molecules, {COUNT} eigenvectors",
            "device": "cpu",
            "system": system,
            "graphs_per_s": len(graphs) / taken,
            "ratio_to_batched": taken / ours,
            "threads": torch.get_num_threads(),
        }
        for system, taken in seconds.items()
    ]


def _interleaved(systems: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median seconds of each, taken in turns so that a busy machine slows all alike."""
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for repeat in range(REPEATS + 1):
        for name, call in systems.items():
            start = time.perf_counter()
            call()
            if repeat:
                taken[name].append(time.perf_counter() - start)
    return {name: float(np.median(times)) for name, times in taken.items()}


def main() -> None:
    rows = measure()
    print(f"{rows[0]['shape']}, {rows[0]['threads']} threads")
    for row in rows:
        print(f"{row['system']:32s} {row['graphs_per_s']:10.0f} graphs/s  {row['ratio_to_batched']:7.2f}x the time")


if __name__ == "__main__":
    main()
