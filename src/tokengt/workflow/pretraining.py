"""Pre-train without a target, so that fine-tuning begins with what molecules, or graphs by their structure, teach."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokengt.config import near
from tokengt.data.manifest import Recipe
from tokengt.data.splitting import SplitRequest
from tokengt.presets import PRESETS
from tokengt.pretraining.objectives import STRUCTURE, TARGETS
from tokengt.pretraining.preparing import Wish, prepare
from tokengt.pretraining.run import PretrainRequest, pretrain_run
from tokengt.pretraining.store import Manifest, is_store
from tokengt.pretraining.structure import RECIPE, refuse_answers, structure_store
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.request import TrainRequest
from tokengt.training.results import read_summary
from tokengt.training.spec import read_run
from tokengt.workflow.fitting import run_request

STORE = "store"
# The number of atoms above which a molecule is left out, where nobody says another.
MAX_ATOMS = 100
# What the command calls an option that has another name here.
_FLAGS = {"described": "describe", "max_atoms": "max-atoms", "weights": "weight"}


def prepare_pretraining(
    molecules: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    exclude: str | Path | Sequence[str | Path] = (),
    targets: str | Sequence[str] = TARGETS,
    described: int | None = None,
    smiles: str | None = None,
    max_atoms: int | None = None,
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
        targets: what will be learned; descriptors and assays are left out of the store if they are not. The target
            structure needs no such store.
        described: how many molecules get descriptors, which take most of the time; None for all.
        smiles: the column of SMILES in files that do not call it so.
        max_atoms: larger molecules are left out; None for 100.
        workers: processes; None for all cores.
        minutes: make the store of what was described by then; the same call later goes on and makes a larger one.
        quiet: say nothing.
    """
    targets = _names(targets)
    if STRUCTURE in targets:
        raise ValueError(
            f"a store of pre-training data has nothing for the target {STRUCTURE}; give the graphs themselves, or a "
            "store that tokengt prepare makes of them"
        )
    wish = Wish(
        _names(molecules),
        _names(exclude),
        described if "descriptors" in targets else 0,
        "assays" in targets,
        smiles,
        MAX_ATOMS if max_atoms is None else max_atoms,
    )
    return prepare(wish, Path(out), workers=workers, minutes=minutes, quiet=quiet)


def pretrain(
    molecules: Any,
    out: str | Path,
    *,
    targets: str | Sequence[str] = TARGETS,
    exclude: str | Path | Sequence[str | Path] = (),
    preset: str = "small",
    settings: Mapping[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    device: Device = "auto",
    described: int | None = None,
    smiles: str | None = None,
    max_atoms: int | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Pre-train a TokenGT and write the folder ``out``, which ``finetune`` begins with; returns what was measured.

    With the target structure, ``out`` is an ordinary run, whose labels are what the graphs themselves say of each node:
    how many rings go through it, and how likely a random walk is back at it. Parts that the data came with are kept.

    Args:
        molecules: as :func:`prepare_pretraining` takes them, or one store that it made; for structure, molecules or
            other graphs as :func:`tokengt.train` takes them, with labels or without.
        out: the folder to make; the same call goes on where one was stopped.
        targets: some of masked (guess hidden atoms), descriptors (RDKit's), fingerprints (bits of neighbourhoods) and
            assays (columns of numbers in the files, public labels); or structure alone.
        preset: a TokenGT that ``tokengt presets`` lists.
        settings: ``{"model.dim": 256, "training.epochs": 20}`` and the like.
        weights: how much an objective counts: masked, bits, descriptors, numbers, answers, active, values; 1 each.
        seed: of split, weights and training.
        device: auto, cpu or cuda.
        exclude, described, smiles, max_atoms, workers, quiet: as :func:`prepare_pretraining` takes them; exclude,
            described, max_atoms and weights mean nothing for structure.

    Raises:
        ValueError: one sentence: what is wrong with the input.
    """
    targets = _names(targets)
    if set(targets) == {STRUCTURE}:
        _refuse_needless({"exclude": exclude, "described": described, "max_atoms": max_atoms, "weights": weights})
        wish = _structure_request(preset, settings or {}, seed, DeviceConfig(device), smiles, workers, quiet)
        run_request(_one(molecules), Path(out), wish, partial(structure_store, seed=seed))
        return _measured(Path(out))
    # Whatever is wrong with the request is said before molecules are described for an hour.
    request = PretrainRequest(targets, preset, dict(settings or {}), seed, dict(weights or {}))
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


def _refuse_needless(given: Mapping[str, Any]) -> None:
    """One sentence for an option that says something about molecules, where any graphs are learned from."""
    for name, value in given.items():
        if value is not None and value not in ((), [], {}):
            raise ValueError(
                f"{name} (--{_FLAGS.get(name, name)}) means nothing for the target {STRUCTURE}, which is learned from "
                "all graphs of the data as they are; leave it out"
            )


def _one(given: Any) -> Any:
    """The data of which the structure is learned: a list of one name is that name.

    Raises:
        ValueError: several names are given, or a store of another kind of pre-training.
    """
    if isinstance(given, (list, tuple)) and given and all(isinstance(each, (str, Path)) for each in given):
        if len(given) > 1:
            raise ValueError(f"the target {STRUCTURE} is learned from one data set; got {', '.join(map(str, given))}")
        given = given[0]
    if isinstance(given, (str, Path)) and is_store(Path(given)):
        raise ValueError(
            f"{given} is a store of pre-training data, which the target {STRUCTURE} is not learned from; expected a "
            "file, a folder of graphs, a store or the name of a data set"
        )
    return given


def _structure_request(
    preset: str,
    settings: Mapping[str, Any],
    seed: int,
    where: DeviceConfig,
    smiles: str | None,
    workers: int | None,
    quiet: bool,
) -> TrainRequest:
    """An ordinary training whose labels are made of the graphs; the same call goes on where it was stopped."""
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r} is unknown{near(preset, PRESETS)}; expected one of {', '.join(PRESETS)}")
    request = TrainRequest(
        recipe=Recipe(smiles=smiles),
        split=SplitRequest(seed=seed),
        preset=preset,
        settings={**RECIPE, **settings},
        default_features=False,
        seed=seed,
        where=where,
        workers=workers,
        resume=True,
        quiet=quiet,
        floor=False,
    )
    refuse_answers(PRESETS[preset](), request.model_settings)
    return request


def _measured(out: Path) -> dict[str, Any]:
    """What was learned of a node, in how many epochs, and how well the test part was predicted."""
    spec, summary = read_run(out), read_summary(out)
    return {"learned": list(spec.task.names), "epochs": summary.epochs, "test": dict(summary.test or {})}


def _names(given: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return (str(given),) if isinstance(given, (str, Path)) else tuple(map(str, given))
