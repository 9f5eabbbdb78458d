"""How the weights of ``pretrained:gap`` were made, a model of HOMO-LUMO gaps (B3LYP, eV) from SMILES.

    TOKENGT_DATA=../shared/data python benchmarks/gap.py pack                # carry/gap/: SMILES and labels as arrays
    python benchmarks/gap.py pretrain --device cuda --out OUT                # 5 minutes on an H200
    python benchmarks/gap.py finetune OUT/pretrained.safetensors --device cuda --out OUT   # 3 minutes
    TOKENGT_DATA=../shared/data python benchmarks/gap.py bundle OUT/gap.safetensors        # the run folder to ship

Only 17,180 molecules with gaps of the right level of theory are at hand. So the encoder first learns from 672,027
molecules of PCBA, FS-Mol and MOSES what RDKit and a Hückel calculation know of them (``huckel.py``: where the levels of
the pi electrons lie), and then from the gaps, beside QM9's orbital energies and the Hückel levels, each under a head of
its own. The 1,000 validation molecules of PCQM4Mv2 are left out everywhere, by their SMILES without stereo marks;
``bundle`` measures the error on them.
"""

import argparse
import csv
import gzip
import io
import json
import lzma
import random
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import huckel
import moleculenet
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from tokengt.batch import GraphBatch
from tokengt.config import to_dict
from tokengt.data.datasets import TRAINED, bundled
from tokengt.data.manifest import Recipe, Source
from tokengt.data.prepare import prepare
from tokengt.data.splits import Split, random_split
from tokengt.data.store import Store
from tokengt.inference import load
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.pretrained import write_model
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.model import TokenGT
from tokengt.presets import small
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.progress import Progress
from tokengt.training.results import CARD
from tokengt.training.spec import RunSpec, write_run
from tokengt.training.tasks import Task

CARRY = moleculenet.ROOT / "carry" / "gap"
GAP_RECIPE = TrainingConfig(epochs=24, batch_size=512, learning_rate=1e-3, warmup=0.05, ema=0.999)
HARTREE = 27.2114
MOSES, MOST_ATOMS, BITS, TENTHS, STEPS = 330_000, 26, 512, 9, 31
NAMES = ("homolumogap", "qm9_gap", "qm9_homo", "qm9_lumo", *(f"huckel_{name}" for name in huckel.LEVELS))
_DESCRIPTORS = (
    "MolWt", "MolLogP", "MolMR", "TPSA", "LabuteASA", "NumHDonors", "NumHAcceptors", "NumRotatableBonds", "RingCount",
    "NumAromaticRings", "FractionCSP3", "NumHeteroatoms", "HallKierAlpha", "Chi1v", "Kappa2",
)  # fmt: skip


def config_for(outputs: int, dropout: float) -> TokenGTConfig:
    """8 layers x 192, 8 heads, one token per bond: 2.4M weights."""
    base = small()
    encoder = replace(base.encoder, num_layers=8, num_heads=8, mlp_dim=384, mlp_dropout=dropout, drop_path=dropout)
    return replace(base, dim=192, head=replace(base.head, out_dim=outputs), encoder=encoder)


def pack(workers: int) -> None:
    """The two data sets as stores of graphs and arrays of labels; needs RDKit, and 90 s on 16 cores."""
    CARRY.mkdir(parents=True, exist_ok=True)
    held = held_out()
    _write("gaps", [(smiles, labels) for smiles, labels in _gap_rows() if _flat(smiles) not in (None, *held)], workers)
    rows = list(_unlabelled())
    random.Random(0).shuffle(rows)
    jobs = [rows[start : start + 4000] for start in range(0, len(rows), 4000)]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(_described, jobs, [held] * len(jobs)))
    smiles = [text for part in parts for text in part[0]]
    assays = _assays()[np.concatenate([part[1] for part in parts])]
    arrays = {name: np.concatenate([part[2][name] for part in parts]) for name in ("bits", "descriptors", "levels")}
    _write("molecules", [(text, ()) for text in smiles], workers, assays=assays, **arrays)


def held_out() -> set[str]:
    """The validation molecules, without stereo marks."""
    with (moleculenet.DATA / "pcqm4mv2_valid_1000.csv").open(newline="") as lines:
        return {flat for row in csv.DictReader(lines) if (flat := _flat(row["smiles"])) is not None}


def _flat(smiles: str) -> str | None:
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    return None if molecule is None else Chem.MolToSmiles(molecule, isomericSmiles=False)


def _levels(smiles: str) -> tuple[float, ...]:
    from rdkit import Chem

    return huckel.levels(Chem.MolFromSmiles(smiles)) or (np.nan,) * len(huckel.LEVELS)


def _gap_rows() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Every molecule with a gap, and its labels in the order of ``NAMES``; the Hückel levels come later."""
    data, none = moleculenet.DATA, (np.nan,) * 3
    with lzma.open(data / "pubchem_b3lyp_gap.csv.xz", "rt") as lines:
        yield from ((row["smiles"], (float(row["homolumogap"]), *none)) for row in csv.DictReader(lines))
    with (data / "pcqm4mv2_train_first1999.csv").open() as lines:
        yield from ((row["smiles"], (float(row["homolumogap"]), *none)) for row in csv.DictReader(lines))
    odd = {int(text) for text in (data / "qm9_uncharacterized.txt").read_text().split()}
    with lzma.open(data / "qm9.csv.xz", "rt") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            if number not in odd:
                yield row["smiles"], (np.nan, *(float(row[name]) * HARTREE for name in ("gap", "homo", "lumo")))


def _unlabelled() -> Iterator[tuple[str, int]]:
    """SMILES and their row of PCBA's labels, -1 for molecules from elsewhere."""
    data = moleculenet.DATA
    with lzma.open(data / "pcba_smiles.csv.xz", "rt") as lines:
        yield from ((row["smiles"], place) for place, row in enumerate(csv.DictReader(lines)))
    with lzma.open(data / "fsmol_smiles.csv.xz", "rt") as lines:
        yield from ((row["smiles"], -1) for row in csv.DictReader(lines))
    with gzip.open(data / "moses_train.csv.gz", "rt") as lines:
        texts = [line.split(",")[0].strip() for line in lines][1:]
    yield from ((text, -1) for text in random.Random(0).sample(texts, MOSES))


def _assays() -> Any:
    """PCBA's labels, and a last row without any for molecules from elsewhere."""
    with lzma.open(moleculenet.DATA / "pcba_labels.npy.xz") as file:
        labels = np.load(io.BytesIO(file.read()), allow_pickle=False).astype(np.int8)
    return np.concatenate([labels, np.full((1, labels.shape[1]), -1, np.int8)])


def _described(rows: list[tuple[str, int]], held: set[str]) -> tuple[list[str], Any, dict[str, Any]]:
    """Of the molecules that are kept: SMILES, place in PCBA, packed fingerprint bits, descriptors, Hückel levels."""
    from rdkit import Chem, rdBase
    from rdkit.Chem import Descriptors
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    generator = GetMorganGenerator(radius=2, fpSize=BITS)
    functions = [getattr(Descriptors, name) for name in _DESCRIPTORS]
    kept, places, bits, descriptors, levels = [], [], [], [], []
    with rdBase.BlockLogs():
        for text, place in rows:
            molecule = Chem.MolFromSmiles(text) if len(text) <= 75 else None
            if molecule is None or not 4 <= molecule.GetNumAtoms() <= MOST_ATOMS:
                continue
            if Chem.MolToSmiles(molecule, isomericSmiles=False) in held:
                continue
            kept.append(text)
            places.append(place)
            bits.append(np.packbits(generator.GetFingerprintAsNumPy(molecule) > 0))
            descriptors.append([function(molecule) for function in functions])
            levels.append(huckel.levels(molecule) or (np.nan,) * len(huckel.LEVELS))
    table = {"bits": np.array(bits), "descriptors": np.array(descriptors, "f4"), "levels": np.array(levels, "f4")}
    return kept, np.array(places), table


def _write(name: str, rows: Iterable[tuple[str, tuple[float, ...]]], workers: int, **arrays: Any) -> None:
    """A store of the molecules, and their labels in the order of the store."""
    rows = list(rows)
    source, store = CARRY / f"{name}.csv", CARRY / name
    source.write_text("smiles\n" + "".join(f"{smiles}\n" for smiles, _ in rows))
    shutil.rmtree(store, ignore_errors=True)
    made = prepare(source, store, Recipe(smiles="smiles"), workers=workers)
    order = made.lines.numpy() - 2
    if rows[0][1]:
        arrays["labels"] = np.array([(*labels, *_levels(smiles)) for smiles, labels in rows], dtype=np.float32)
    with lzma.open(CARRY / f"{name}.npz.xz", "wb", preset=2) as file:
        np.savez(file, **{key: values[order] for key, values in arrays.items()})  # type: ignore[arg-type]
    source.unlink()
    print(f"{name}: {len(made):,} molecules")


def _read(name: str) -> tuple[Store, dict[str, Any]]:
    with lzma.open(CARRY / f"{name}.npz.xz") as file:
        return Store.open(CARRY / name), dict(np.load(io.BytesIO(file.read()), allow_pickle=False))


def yes_no(arrays: dict[str, Any]) -> Tensor:
    """[molecules, labels] of 0, 1 and NaN: fingerprint bits, numbers above the tenths of their distribution, assays."""
    above = _above(arrays["descriptors"], TENTHS)
    levels = np.where(np.isnan(arrays["levels"]).repeat(STEPS, 1), np.nan, _above(arrays["levels"], STEPS))
    assays = np.where(arrays["assays"] < 0, np.nan, arrays["assays"])
    parts = (np.unpackbits(arrays["bits"], axis=1), above, levels, assays)
    return torch.cat([torch.from_numpy(part.astype(np.float32)) for part in parts], 1)


def _above(values: Any, steps: int) -> Any:
    """[rows, columns * steps]: whether each number lies above the quantiles of its column."""
    edges = np.nanquantile(values, np.arange(1, steps + 1) / (steps + 1), axis=0)
    return (values[:, :, None] > edges.T).reshape(len(values), -1)


class GapTask(Task):
    """Regression by absolute error, round at the bottom; the gap at the right level of theory counts three times."""

    def loss_sum(self, output: Tensor, targets: Tensor) -> Tensor:
        mean, scale = (torch.tensor(values, device=output.device) for values in (self.mean, self.scale))
        scaled = (targets.float() - mean) / scale
        present = ~torch.isnan(scaled)
        losses = F.smooth_l1_loss(
            torch.where(present, output.float(), 0), torch.where(present, scaled, 0), beta=0.05, reduction="none"
        )
        losses[:, 0] *= 3
        return losses.sum()


def fit(
    device: str, graphs: GraphBatch, targets: Tensor, split: Split, task: Task, model: TokenGT, recipe: TrainingConfig
) -> dict[str, Tensor]:
    """The best weights."""
    start = time.perf_counter()
    parts = cut(graphs, targets, "graph", split, by_row=False, costs=model.costs(graphs))
    fabric = make_fabric(DeviceConfig(device), recipe.precision)  # type: ignore[arg-type]

    def log(records: list[dict[str, Any]]) -> None:
        if records:
            valid = {name: value for name, value in records[-1]["valid"].items() if "/" not in name or "homo" in name}
            line = {key: records[-1][key] for key in ("epoch", "train_loss", "valid_loss")} | valid
            print(f"{time.perf_counter() - start:.0f} s {json.dumps(line)}", flush=True)

    quiet = Progress(recipe.epochs, quiet=True)
    trainer = Trainer(fabric, model, parts, task, recipe, on_epoch=log, progress=quiet)
    trainer.run()
    return {name: tensor.cpu() for name, tensor in trainer.best.items()}


def pretrain(device: str, out: Path) -> None:
    store, arrays = _read("molecules")
    targets = yes_no(arrays)
    config = config_for(targets.shape[1], dropout=0.05)
    graphs = store.with_facts(config.facts()).graphs
    split = random_split(len(graphs), 0, (0.99, 0.01, 0.0))
    task = Task.fit("binary", targets, [str(place) for place in range(targets.shape[1])])
    recipe = TrainingConfig(epochs=26, batch_size=1024, learning_rate=1.5e-3, warmup=0.04, ema=0.999)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    save_file(fit(device, graphs, targets, split, task, TokenGT(config), recipe), out / "pretrained.safetensors")


def finetune(weights: Path, device: str, out: Path, repeat: int = 8) -> None:
    """Molecules of the right level of theory come ``repeat`` times in an epoch; 800 of them choose the best epoch."""
    store, arrays = _read("gaps")
    targets = torch.from_numpy(arrays["labels"])
    mine = ~torch.isnan(targets[:, 0])
    order = torch.nonzero(mine).flatten()
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(1))]
    valid, train = order[:800].sort().values, order[800:]
    split = Split(torch.cat([train.repeat(repeat), torch.nonzero(~mine).flatten()]), valid, valid[:0])
    fitted = Task.fit("regression", targets[split.train], NAMES)
    task = GapTask("regression", fitted.names, None, fitted.mean, fitted.scale, "mae", "huber")
    config = config_for(len(NAMES), dropout=0.1)
    torch.manual_seed(0)
    model = TokenGT(config)
    learned = {name: value for name, value in load_file(weights).items() if not name.startswith("head.")}
    model.load_state_dict(model.state_dict() | learned)
    best = fit(device, store.with_facts(config.facts()).graphs, targets, split, task, model, GAP_RECIPE)
    scaling = json.dumps({"mean": task.mean, "scale": task.scale})
    save_file(best, out / "gap.safetensors", metadata={"task": scaling})


def bundle(weights: Path) -> None:
    """The run folder that ships: one output, weights of 16 bits, a card with its error on the validation molecules."""
    folder = bundled(TRAINED["gap"])
    shutil.rmtree(folder, ignore_errors=True)
    with safe_open(weights, framework="pt") as file:
        scaling = json.loads(file.metadata()["task"])
    # The other heads were there to teach the encoder.
    state = {name: value[:1] if name.startswith("head.") else value for name, value in load_file(weights).items()}
    mean, scale = (tuple(scaling[name][:1]) for name in ("mean", "scale"))
    spec = RunSpec(
        model=config_for(1, dropout=0.1),
        training=GAP_RECIPE,
        task=Task("regression", NAMES[:1], None, mean, scale, "mae", "huber"),
        level="graph",
        seed=0,
        split="800 molecules chose the epoch; pcqm4mv2_valid_1000 tests",
        split_sha256="",
        source=Source("PubChem and PCQM4Mv2 gaps, QM9", "", 148_011),
        store_sha256="",
        molecules=MoleculePolicy(),
        text_column="smiles",
    )
    write_run(folder, spec)
    halves = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    write_model(folder, to_dict(spec.model), halves, spec.fingerprint)
    (folder / CARD).write_text(CARD_TEXT.format(**_errors(folder)), encoding="utf-8")


def _errors(folder: Path) -> dict[str, float]:
    """Of the shipped folder on the validation molecules, which nothing before this has seen."""
    with (moleculenet.DATA / "pcqm4mv2_valid_1000.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    measured = np.array([float(row["homolumogap"]) for row in rows])
    predicted = load(folder, "cpu").predict([row["smiles"] for row in rows]).mean[:, 0]
    errors = np.abs(predicted - measured)
    found = {"mae": errors.mean(), "rmse": np.sqrt((errors**2).mean()), "median": np.median(errors)}
    return found | {"largest": errors.max(), "floor": np.abs(measured - np.median(measured)).mean()}


CARD_TEXT = """# gap: HOMO-LUMO gaps in eV

Predicts the gap between the highest occupied and the lowest unoccupied orbital of a molecule as density functional
theory (B3LYP/6-31G*) gives it, from its SMILES: `tokengt predict pretrained:gap NEW.csv --out OUT.csv`.

A TokenGT of 8 layers x 192, 8 heads, one token per bond, Laplacian identifiers of 16 numbers; 2.4 million weights.

## How good it is

1,000 molecules of the validation part of PCQM4Mv2, none of which was in any data that it learned from (compared without
stereo marks). They chose nothing: 800 others chose the epoch, and this recipe over one with another learning rate,
which came to 0.235 eV here.

| mean absolute error | root mean square | median | largest | always the median |
|---|---|---|---|---|
| {mae:.3f} eV | {rmse:.3f} eV | {median:.3f} eV | {largest:.2f} eV | {floor:.3f} eV |

## What it learned from

1. 672,027 molecules of 4 to 26 heavy atoms from PCBA (MIT), FS-Mol (CC BY-SA 4.0) and MOSES (MIT): fingerprint bits,
   descriptors, levels of the pi electrons by Hückel's method, PCBA's assays.
2. 15,181 gaps of PubChem molecules (iqspr, MIT) and 1,999 of PCQM4Mv2 (CC BY 4.0), beside the orbital energies of
   130,831 molecules of QM9 and the Hückel levels, each under a head of its own that is not shipped.

`benchmarks/gap.py` is the recipe: eight minutes on one H200.

## Limits

Neutral molecules of H, C, N, O, F, S, Cl and a few other elements, up to about 20 heavy atoms: what the gaps were of.
Ions, metals and large conjugated systems are guesses. It knows no conformer. The gap is that of the calculation, not of
an experiment. There is no uncertainty: `--draws 16` gives a spread that is not calibrated.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("pack").add_argument("--workers", type=int, default=2)
    pretraining, finetuning = verbs.add_parser("pretrain"), verbs.add_parser("finetune")
    finetuning.add_argument("weights", type=Path)
    for verb in (pretraining, finetuning):
        verb.add_argument("--device", default="auto")
        verb.add_argument("--out", type=Path, required=True)
    verbs.add_parser("bundle").add_argument("weights", type=Path)
    args = parser.parse_args()
    if args.verb == "pack":
        pack(args.workers)
    elif args.verb == "pretrain":
        pretrain(args.device, args.out)
    elif args.verb == "finetune":
        finetune(args.weights, args.device, args.out)
    else:
        bundle(args.weights)


if __name__ == "__main__":
    main()
