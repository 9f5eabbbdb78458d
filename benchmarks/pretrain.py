"""How the weights of the preset ``small-pretrained`` were made: molecules of ogbg-molpcba, yes/no labels.

    TOKENGT_DATA=../shared/data python benchmarks/pretrain.py pack      # carry/pretrain.npz.xz, needs RDKit
    python benchmarks/pretrain.py train --device cuda --out $OUT        # a GPU; the machine needs no RDKit
    python benchmarks/pretrain.py bundle MODEL                          # the encoder goes into the package

The labels are the bits of a Morgan fingerprint (which groups of atoms there are), whether descriptors lie above the
tenths of their distribution, and the 128 assays of the data set. No molecule of the four data sets of
benchmarks/moleculenet.py is among them. Other weights are made by ``tokengt pretrain``, which also leaves out salts and
stereoisomers; ``bundle`` takes its folder too.
"""

import argparse
import csv
import io
import json
import lzma
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import moleculenet
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.datasets import bundled
from tokengt.data.facts import fact_of_all
from tokengt.data.splits import random_split
from tokengt.interop.molecules import canonical_smiles, pack_molecules
from tokengt.interop.smiles import batch_of_molecules
from tokengt.models.tokengt.model import TokenGT
from tokengt.presets import PRETRAINED, small
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.progress import Progress
from tokengt.training.tasks import Task

PACK = moleculenet.ROOT / "carry" / "pretrain.npz.xz"
BITS, TENTHS, MOST_ATOMS = 1024, 9, 60
_DESCRIPTORS = (
    "MolWt", "MolLogP", "MolMR", "TPSA", "LabuteASA", "NumHDonors", "NumHAcceptors", "NumRotatableBonds", "RingCount",
    "NumAromaticRings", "FractionCSP3", "NumHeteroatoms", "NumAliphaticRings", "HallKierAlpha", "Chi1v", "Kappa2",
)  # fmt: skip


def pack(count: int, seed: int) -> None:
    """Draw ``count`` molecules, describe them with two processes and write what the GPU machine needs."""
    used = benchmark_molecules()
    with lzma.open(moleculenet.DATA / "pcba_smiles.csv.xz", "rt", encoding="utf-8") as lines:
        smiles = [row["smiles"] for row in csv.DictReader(lines)]
    with lzma.open(moleculenet.DATA / "pcba_labels.npy.xz") as file:
        assays = np.load(io.BytesIO(file.read()), allow_pickle=False)
    order = np.random.default_rng(seed).permutation(len(smiles))[:count]
    chunks = np.array_split(order, max(len(order) // 5000, 1))
    with ProcessPoolExecutor(2) as pool:
        described = list(
            pool.map(describe, ([(int(i), smiles[i]) for i in chunk] for chunk in chunks), [used] * len(chunks))
        )
    kept = np.concatenate([part[0] for part in described])
    values = np.concatenate([part[2] for part in described])
    edges = np.nanquantile(values, np.arange(1, TENTHS + 1) / (TENTHS + 1), axis=0)
    above = (values[:, None] > edges).reshape(len(values), -1)
    graphs = batch_of_molecules(pack_molecules([smiles[i] for i in kept]))
    arrays = {name: tensor.numpy() for name, tensor in graphs.arrays().items()}
    arrays |= {
        "bits": np.concatenate([part[1] for part in described]),
        "above": np.packbits(above, axis=1),
        "assays": assays[kept].astype(np.int8),
    }
    PACK.parent.mkdir(exist_ok=True)
    with lzma.open(PACK, "wb", preset=2) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    print(f"{len(kept):,} molecules, {above.shape[1]} descriptor labels, {PACK.stat().st_size / 2**20:.0f} MiB")


def benchmark_molecules() -> set[str | None]:
    rows = [row for data in moleculenet.DATASETS for row in moleculenet.read_rows(moleculenet.split_file(data, 0))]
    return set(canonical_smiles([row["smiles"] for row in rows]))


def describe(rows: list[tuple[int, str]], used: set[str | None]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Places of the rows that are kept, their packed fingerprint bits and their descriptors."""
    from rdkit import Chem, rdBase
    from rdkit.Chem import Descriptors
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    generator = GetMorganGenerator(radius=2, fpSize=BITS)
    functions = [getattr(Descriptors, name) for name in _DESCRIPTORS]
    kept, bits, values = [], [], []
    with rdBase.BlockLogs():
        for place, text in rows:
            molecule = Chem.MolFromSmiles(text)
            if molecule is None or not 0 < molecule.GetNumAtoms() <= MOST_ATOMS or Chem.MolToSmiles(molecule) in used:
                continue
            kept.append(place)
            bits.append(np.packbits(generator.GetFingerprintAsNumPy(molecule) > 0))
            values.append([function(molecule) for function in functions])
    return np.array(kept), np.array(bits), np.array(values)


def read_pack() -> tuple[GraphBatch, Tensor]:
    """The graphs, and [molecules, labels] with NaN for an assay that was not run."""
    with lzma.open(PACK) as file:
        arrays = dict(np.load(io.BytesIO(file.read()), allow_pickle=False))
    assays = arrays.pop("assays")
    labels = [
        np.unpackbits(arrays.pop("bits"), axis=1),
        np.unpackbits(arrays.pop("above"), axis=1)[:, : len(_DESCRIPTORS) * TENTHS],
        np.where(assays < 0, np.nan, assays),
    ]
    targets = torch.cat([torch.from_numpy(part.astype(np.float32)) for part in labels], 1)
    return GraphBatch.from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()}), targets


def train(device: str, out: Path, training: TrainingConfig) -> None:
    start = time.perf_counter()
    graphs, targets = read_pack()
    config = replace(small(), head=replace(small().head, out_dim=targets.shape[1]))
    for fact in config.facts():
        graphs = graphs.with_fact(fact.name, fact_of_all(graphs, fact), fact.per)
    split = random_split(len(graphs), 0, (0.99, 0.01, 0.0))
    task = Task.fit("binary", targets[split.train], [str(place) for place in range(targets.shape[1])])
    print(f"read in {time.perf_counter() - start:.0f} s", flush=True)
    torch.manual_seed(0)
    model = TokenGT(config)
    parts = cut(graphs, targets, "graph", split, by_row=False, costs=model.costs(graphs))
    fabric = make_fabric(DeviceConfig(device), training.precision)  # type: ignore[arg-type]

    def log(records: list[dict[str, Any]]) -> None:
        if records:
            valid = {name: value for name, value in records[-1]["valid"].items() if "/" not in name}
            line = {key: records[-1][key] for key in ("epoch", "train_loss", "valid_loss")} | valid
            print(f"{time.perf_counter() - start:.0f} s {json.dumps(line)}", flush=True)

    trainer = Trainer(
        fabric, model, parts, task, training, folder=out, on_epoch=log, progress=Progress(training.epochs, quiet=True)
    )
    trainer.run(resume=True)
    best = TokenGT(config)
    best.load_state_dict(trainer.best)
    best.save_pretrained(out / "model", overwrite=True)
    for old in (out / "checkpoints").iterdir():
        old.unlink()


def bundle(model: Path) -> None:
    """The encoder alone, under the name that ``presets.PRETRAINED`` gives; who begins with it brings a new head."""
    trained = TokenGT.from_pretrained(model)
    starting = TokenGT(small())
    encoder = {name: value for name, value in trained.state_dict().items() if not name.startswith("head.")}
    starting.load_state_dict(starting.state_dict() | encoder)
    for weight in starting.head.parameters():
        torch.nn.init.zeros_(weight)
    starting.save_pretrained(bundled(PRETRAINED["small-pretrained"]), overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("--count", type=int, default=380_000)
    training = verbs.add_parser("train")
    training.add_argument("--device", default="auto")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--epochs", type=int, default=12)
    training.add_argument("--batch-size", type=int, default=1024)
    training.add_argument("--learning-rate", type=float, default=2.5e-3)
    bundling = verbs.add_parser("bundle")
    bundling.add_argument("model", type=Path)
    args = parser.parse_args()
    if args.verb == "pack":
        pack(args.count, seed=0)
    elif args.verb == "bundle":
        bundle(args.model)
    else:
        recipe = TrainingConfig(
            epochs=args.epochs, batch_size=args.batch_size, learning_rate=args.learning_rate, warmup=0.05
        )
        train(args.device, args.out, recipe)


if __name__ == "__main__":
    main()
