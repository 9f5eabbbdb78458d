"""Explain one prediction of a run: the numbers behind the report, in the units of its targets."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.config import near
from tokengt.data.batching import evaluation_batches, tokens_at_once
from tokengt.data.datasets import find_run
from tokengt.explain.attributions import Method, mean_attribution
from tokengt.explain.distance import graph_distances
from tokengt.explain.explanation import (
    ATTRIBUTIONS,
    AttentionSummary,
    Explanation,
    Interval,
    Molecule,
    attempt,
    explain_graph,
)
from tokengt.explain.profile import graph_profiles, mean_profile
from tokengt.explain.token_subject import Baseline
from tokengt.explain.tokens import Tokens
from tokengt.inference import Predictor, Trained
from tokengt.interop.molecules import read_molecule
from tokengt.models.passes import Over
from tokengt.structure.facts import with_facts
from tokengt.training.calibration import Trust
from tokengt.training.processes import Device
from tokengt.training.tasks import Task
from tokengt.workflow.beside import Beside
from tokengt.workflow.questions import Answered, prediction_question
from tokengt.workflow.run_data import Part, RunData
from tokengt.workflow.single import Single, single_graph

# The mean over this many graphs of the validation part is near enough to that over all of it.
USUAL = 64
# How a bond is written between two atoms.
_BONDS = {"SINGLE": "-", "DOUBLE": "=", "TRIPLE": "#", "AROMATIC": ":"}


def explain(
    run: Predictor | str | Path,
    given: Any,
    *,
    row: int | None = None,
    smiles: str | None = None,
    descriptors: Sequence[float] | None = None,
    target: str | int | None = None,
    item: int = 0,
    methods: Sequence[Method] = ATTRIBUTIONS,
    baseline: Baseline = "ordinary",
    draws: int = 1,
    over: Over = "identifiers",
    usual: int | AttentionSummary = USUAL,
    data: Path | None = None,
    device: Device = "auto",
    max_atoms: int | None = None,
) -> Explanation:
    """Everything that is known of one prediction of a run.

    Predictions and attributions are in natural units or probabilities, the mean over all models of the run (and over
    draws of identifiers, with their standard deviation); maps, distances and profiles are those of its first model.

    Args:
        run: a run, its folder, or one that comes with the package (``pretrained:gap``).
        given: a SMILES; a table, a file or folder of graphs, a store or the name of a data set; a PyG graph, a Graph,
            a NetworkX graph, or the content of a node-link JSON file (:func:`~tokengt.workflow.single.single_graph`,
            whose answer may be given too).
        row: which row of a file, counted from 1 without its header.
        smiles: the column of SMILES.
        descriptors: the extra numbers the run was trained with.
        target: which target, or which class of a multiclass run: its name or its number from 0; None for the first
            target, or for the class that is predicted.
        item: of a run that predicts nodes or edges: the number of the node, or of the listed edge, from 0.
        methods: which attributions; none for a quick look.
        baseline: of integrated gradients.
        draws: how many draws are averaged.
        over: what differs between draws.
        usual: over how many graphs of the validation part attention is measured to compare with (0: none), or what was
            measured before.
        data: the store that the run was trained with, where it does not lie in its folder.
        device: where the model runs.
        max_atoms: how large a molecule may be, instead of the run's own limit.

    Raises:
        ValueError: one sentence: what cannot be read or explained.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "loading"):
        predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
        if isinstance(given, Single):
            single = given
        else:
            single = single_graph(predictor, given, row=row, smiles=smiles, descriptors=descriptors)
    with _timed(seconds, "prediction"):
        told = _predicted(predictor, single.graph, item, draws, over)
    prediction, spread = told.values[0].numpy(), None if told.spread is None else told.spread[0].numpy()
    names = predictor.task.classes or predictor.task.names
    output = _output(target, names, prediction, predictor.task)
    passes = draws if over == "identifiers" else 1
    with _timed(seconds, "explanation"):
        ask = partial(explain_graph, row=item, output=output, methods=methods, baseline=baseline)
        parts = [
            ask(member.model, graph, reading=reading, draw=draw, attention=place == draw == 0)
            for place, member in enumerate(predictor.members)
            for graph in [ready(member, single.graph, predictor.device)]
            for reading in [partial(predictor.readable, member=member, said=member.said(graph))]
            for draw in range(passes)
        ]
    first, missing = parts[0], dict(parts[0].missing)
    with _timed(seconds, "validation part"):
        found = usual if isinstance(usual, AttentionSummary) else _usual(predictor, run, usual, data, missing)
    tokens, molecule = _named(predictor, single, first.tokens)
    scores = {
        method: mean_attribution([part.attributions[method] for part in parts]).named(tokens)
        for method in first.attributions
    }
    return replace(
        first,
        graph=single.graph[0],
        tokens=tokens,
        outputs=tuple(names),
        prediction=prediction,
        spread=spread,
        unit="natural units" if predictor.task.kind == "regression" else "probability",
        interval=_interval(told.trust, Beside.usual(predictor).interval),
        unlike=None if told.trust.unlike is None else bool(told.trust.unlike[0]),
        attributions=scores,
        maps=None if first.maps is None else replace(first.maps, tokens=tokens),
        missing=missing,
        members=len(predictor.members),
        forest=_forest_share(predictor, first.output),
        usual=found,
        molecule=molecule,
        source=single.source,
        seconds=seconds,
    )


def ready(member: Trained, graphs: GraphBatch, device: torch.device) -> GraphBatch:
    """Graphs as one model of a run takes them: descriptors scaled, facts worked out, on its device."""
    if graphs.graph_features is not None and member.descriptors.mean:
        graphs = graphs.with_graph_features(member.descriptors.scaled(graphs.graph_features))
    return with_facts(graphs.to(device), member.model.config.facts())


def attention_over(
    member: Trained, graphs: GraphBatch, places: Int[Tensor, " places"], device: torch.device, part: str
) -> AttentionSummary:
    """Attention distance and equivariance profile over the graphs at these places.

    Raises:
        ValueError: one sentence: the model has no attention maps.
    """
    hops, profiles = [], []
    for chosen in evaluation_batches(places, member.model.costs(graphs), tokens_at_once(device)):
        batch = ready(member, graphs.select(chosen), device)
        hops.append(graph_distances(member.model, batch).hops)
        profiles.append(graph_profiles(member.model, batch))
    return AttentionSummary(np.concatenate(hops).mean(0), mean_profile(profiles), len(places), part)


def usual_attention(
    run: Predictor | str | Path, graphs: int = USUAL, part: Part = "valid", data: Path | None = None
) -> AttentionSummary:
    """Attention over some graphs of a part of the run's data, evenly spaced: the same ones every time.

    ``run`` is a folder, since a :class:`Predictor` does not know its data.

    Raises:
        ValueError: one sentence: the run has no data, or its model no attention maps.
    """
    if isinstance(run, Predictor):
        raise ValueError("a loaded run does not know its data; give its folder for the attention over its data")
    return _over_part(Predictor.load(run), find_run(run), graphs, part, data)


def _over_part(predictor: Predictor, folder: Path, graphs: int, part: Part, data: Path | None) -> AttentionSummary:
    opened = RunData.open(folder, data)
    every = opened.places(part)
    if not len(every):
        raise ValueError(f"{folder} has no graph in its {part} part")
    chosen = every[torch.linspace(0, len(every) - 1, min(graphs, len(every))).round().long()]
    words = {"valid": "validation", "train": "training", "test": "test"}[part]
    return attention_over(predictor.members[0], opened.store.graphs, chosen, predictor.device, f"{words} part")


def _usual(
    predictor: Predictor, run: Predictor | str | Path, graphs: int, data: Path | None, missing: dict[str, str]
) -> AttentionSummary | None:
    if "distance" in missing or not graphs:
        missing["usual"] = missing.get("distance", "attention over the validation part was not asked for")
        return None
    if isinstance(run, Predictor):
        missing["usual"] = "the run was given as a loaded Predictor, which does not know its data"
        return None
    folder = find_run(run)
    return attempt(lambda: _over_part(predictor, folder, graphs, "valid", data), "usual", missing)


def _predicted(predictor: Predictor, graph: GraphBatch, item: int, draws: int, over: Over) -> Answered:
    """The row of predictions that is explained, with all that the run can tell of it."""
    predictor.refuse_links("explain")
    rows = graph.level_rows(predictor.spec.level).total
    if not 0 <= item < rows:
        level = predictor.spec.level
        raise ValueError(f"item is {item}; this run predicts one row per {level}, and the graph has {rows} (from 0)")
    beside = Beside.usual(predictor)
    found = prediction_question(predictor, draws, over, beside.interval, beside.neighbours).ask(graph)
    for reason in predictor.reasons(graph, found.values).values():
        raise ValueError(reason)
    return found.at(slice(item, item + 1))


def _forest_share(predictor: Predictor, output: int) -> float | None:
    """The mean share that forests have of an output, over the models of the run; None where there are none."""
    shares = [member.forest.share for member in predictor.members if member.forest is not None]
    # A multiclass run has one target, whose classes are the outputs.
    return float(torch.stack([share[min(output, len(share) - 1)] for share in shares]).mean()) if shares else None


def _interval(trust: Trust, level: float | None) -> Interval | None:
    """The bounds of the one row that there is."""
    if trust.low is None or trust.high is None or level is None:
        return None
    return Interval(trust.low[0], trust.high[0], level)


def _output(target: str | int | None, names: Sequence[str], prediction: np.ndarray, task: Task) -> int:
    if target is None:
        return int(np.argmax(prediction)) if task.kind == "multiclass" else 0
    if isinstance(target, int) and 0 <= target < len(names):
        return target
    if target in names:
        return list(names).index(str(target))
    what = "class" if task.kind == "multiclass" else "target"
    raise ValueError(f"the run has no {what} {target!r}{near(str(target), names)}; expected one of {', '.join(names)}")


def _named(predictor: Predictor, single: Single, tokens: Tokens) -> tuple[Tokens, Molecule | None]:
    """Names of atoms and bonds, where the graph was read from the text of a molecule."""
    policy = predictor.spec.molecules
    if single.text is None or policy is None:
        return tokens, None
    molecule = read_molecule(single.text, policy, single.kind)
    from rdkit import Chem

    atoms = [f"{atom.GetSymbol()}{atom.GetIdx()}" for atom in molecule.GetAtoms()]
    joints = []
    for token in tokens.edges:
        bond = molecule.GetBondBetweenAtoms(*(int(end) for end in tokens.endpoints[token]))
        joints.append(_BONDS.get(bond.GetBondType().name, "~"))
    return tokens.named(atoms, joints), Molecule(single.text, Chem.MolToSmiles(molecule), single.kind, policy)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = time.perf_counter() - began
