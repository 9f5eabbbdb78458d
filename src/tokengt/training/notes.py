"""What a person is told of a training besides its numbers: what the data hides, and where something simpler wins.

Sentences are said while it runs, and most of them stand in the model card as well.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.datasets import bundled
from tokengt.data.leaks import leaks, unseen_elements
from tokengt.data.store import Store
from tokengt.files import file_checksum
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.pretrained import WEIGHTS
from tokengt.presets import PRETRAINED
from tokengt.training.card import LINEAR, censored_notes
from tokengt.training.forest import left_out
from tokengt.training.resolve import Member, Say, policy_of
from tokengt.training.tasks import Task


def data_notes(store: Store, member: Member, guessed: bool, say: Say) -> dict[str, Any]:
    """What the split hides: molecules in two parts, elements never trained on; of several folds, only the first's.

    ``guessed``: nobody said which kind of task it is.
    """
    spec, split = member.spec, member.split
    if guessed and spec.task.kind == "regression" and _looks_like_classes(member.train_targets):
        say("the labels are a few whole numbers, learned as numbers; if they name classes, choose the task multiclass")
    for sentence in split.sentences():
        say(f"split: {sentence}")
    blank = int(torch.isnan(member.train_targets).all(1).sum())
    if blank:
        say(f"{blank:,} of {len(member.train_targets):,} training rows have no label and teach nothing")
    noted = [f"Training began with the weights of {_start_name(spec.start)}."] if spec.start else []
    if spec.molecules is not None and spec.molecules.features:
        kinds = ", ".join(spec.molecules.features)
        say(f"beside the graph the model is given {kinds} of each molecule")
        noted.append(f"Beside the graph the model is given {kinds} of each molecule.")
    if spec.auxiliary:
        noted.append(f"It also learned to predict {', '.join(spec.auxiliary)} of each molecule, beside its targets.")
    if spec.task.logged:
        sentence = f"The logarithm of {', '.join(spec.task.logged)} is learned, so that relative errors count alike."
        say(f"{sentence} (training.log_targets)")
        noted.append(sentence)
    without = left_out(spec.training, spec.task, store, spec.model)
    if without is not None:
        say(without)
        noted.append(f"{without[0].upper()}{without[1:]}.")
    missing = spec.task.unseen_classes(member.train_targets)
    if missing:
        shown = f"{', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}"
        say(f"classes without a training row, which the model cannot learn: {shown}")
        noted.append(f"Classes without a training row, which the model cannot learn: {shown}.")
    learned = store.bounds is not None
    censored = censored_notes({target.name: target.censored for target in store.manifest.targets}, learned)
    far = spec.descriptors.far_off(store.graphs.graph_features) if spec.descriptors.names else ()
    for sentence in (*censored, *far):
        say(sentence)
    notes = (*noted, *censored, *far)
    if member.by_row:
        return {"notes": notes}
    try:
        shared = leaks(store.graphs, split, store.each_text, policy=policy_of(store) or MoleculePolicy())
    except ImportError:
        # A machine that only trains may have the store but no RDKit. Graphs that colour refinement cannot tell apart
        # are then taken for the same molecule, without a comparison of their SMILES.
        shared = leaks(store.graphs, split)
    for sentence in shared.sentences(store.lines, "line" if store.is_molecules else "graph"):
        say(sentence)
    unseen = unseen_elements(store.graphs, split) if store.is_molecules else {}
    if unseen:
        listed = ", ".join(f"{symbol} ({count})" for symbol, count in unseen.items())
        say(f"elements that no training molecule has (molecules that do): {listed}")
    return {"shared": sum(shared.counts.values()), "unseen": unseen, "notes": notes}


def say_if_beaten(task: Task, summary: Mapping[str, Any], say: Say) -> None:
    """A warning where something that took no training is better than what was trained."""
    ours = summary.get("test", {}).get(task.judged, math.nan)
    for name, what in (("floor", "knowing only the training labels"), ("linear", LINEAR)):
        theirs = summary.get(name, {}).get(task.judged, math.nan)
        if task.is_better(theirs, ours):
            say(f"{what} is better on the test part: {task.judged} {theirs:.4g}, this model {ours:.4g}")


def _start_name(sha256: str) -> str:
    """Weights that come with the package by their preset, others by their checksum."""
    for name, folder in PRETRAINED.items():
        if file_checksum(bundled(folder) / WEIGHTS) == sha256:
            return f"the preset {name}, which comes with tokengt"
    return f"another model (SHA-256 {sha256[:12]}...)"


def _looks_like_classes(targets: Float[Tensor, "rows targets"]) -> bool:
    labels = targets[~torch.isnan(targets)]
    return bool((labels == labels.round()).all()) and len(torch.unique(labels)) <= 20 < len(labels)
