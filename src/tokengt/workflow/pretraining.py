"""Pre-train on molecules without a target, so that fine-tuning begins with what they teach."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.pretraining.objectives import TARGETS
from tokengt.pretraining.preparing import Wish, prepare
from tokengt.pretraining.run import PretrainRequest, pretrain_run
from tokengt.pretraining.store import Manifest, is_store
from tokengt.training.processes import Device

STORE = "store"


def prepare_pretraining(
    molecules: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    exclude: str | Path | Sequence[str | Path] = (),
    targets: Sequence[str] = TARGETS,
    described: int | None = None,
    smiles: str | None = None,
    max_atoms: int = 100,
    workers: int | None = None,
    minutes: float | None = None,
    quiet: bool = False,
) -> Manifest:
    """Make a store of pre-training data, from which a machine without RDKit can train; returns what it holds.

    Args:
        molecules: files of molecules, or names of public data sets under ``TOKENGT_DATA`` (moses, pcba, fsmol, qm9,
            hiv, tox21); ``moses:100000`` takes so many of its molecules.
        out: the folder to make; the same call goes on where one was stopped.
        exclude: files or names of molecules that must not be trained on, in any salt, stereoisomer or charge;
            ``admet`` means the test parts of the TDC ADMET group.
        targets: what will be learned; descriptors and assays are left out of the store if they are not.
        described: how many molecules get descriptors, which take most of the time; None for all.
        smiles: the column of SMILES in files that do not call it so.
        max_atoms: larger molecules are left out.
        workers: processes; None for all cores.
        minutes: make the store of what was described by then; the same call later goes on and makes a larger one.
        quiet: say nothing.
    """
    wish = Wish(
        _names(molecules),
        _names(exclude),
        described if "descriptors" in targets else 0,
        "assays" in targets,
        smiles,
        max_atoms,
    )
    return prepare(wish, Path(out), workers=workers, minutes=minutes, quiet=quiet)


def pretrain(
    molecules: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    targets: Sequence[str] = TARGETS,
    exclude: str | Path | Sequence[str | Path] = (),
    preset: str = "small",
    settings: Mapping[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    device: Device = "auto",
    described: int | None = None,
    smiles: str | None = None,
    max_atoms: int = 100,
    workers: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Pre-train a TokenGT and write the folder ``out``, which ``finetune`` begins with; returns what was measured.

    Args:
        molecules: as :func:`prepare_pretraining` takes them, or one store that it made.
        out: the folder to make; the same call goes on where one was stopped.
        targets: some of masked (guess hidden atoms), descriptors (RDKit's), fingerprints (bits of neighbourhoods) and
            assays (columns of numbers in the files, public labels).
        preset: a TokenGT that ``tokengt presets`` lists.
        settings: ``{"model.dim": 256, "training.epochs": 20}`` and the like.
        weights: how much an objective counts: masked, bits, descriptors, numbers, answers, active, values; 1 each.
        seed: of split, weights and training.
        device: auto, cpu or cuda.
        exclude, described, smiles, max_atoms, workers, quiet: as :func:`prepare_pretraining` takes them.

    Raises:
        ValueError: one sentence: what is wrong with the input.
    """
    # Whatever is wrong with the request is said before molecules are described for an hour.
    request = PretrainRequest(tuple(targets), preset, dict(settings or {}), seed, dict(weights or {}))
    names, out = _names(molecules), Path(out)
    if len(names) == 1 and is_store(Path(names[0])):
        if _names(exclude):
            raise ValueError(
                f"{names[0]} is a store, which was made with what it leaves out; give exclude to its making"
            )
        store = Path(names[0])
    else:
        store = out / STORE
        prepare_pretraining(
            names,
            store,
            exclude=exclude,
            targets=request.targets,
            described=described,
            smiles=smiles,
            max_atoms=max_atoms,
            workers=workers,
            quiet=quiet,
        )
    return pretrain_run(store, out, request, device=device, quiet=quiet)


def _names(given: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return (str(given),) if isinstance(given, (str, Path)) else tuple(map(str, given))
