"""Predict or embed: every row comes back in its order, with an answer or the reason why there is none.

Rows come from a table, a store or a file of graphs (:mod:`tokengt.workflow.rows`). Each chunk of them is answered by
the model and kept as a part of the file beside it, so that a killed call goes on where it was; when the last one is
done the file is written whole. A draw is one pass of a model with its own random identifiers (or dropout); several
draws are averaged.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tokengt.config import to_dict
from tokengt.data import engines
from tokengt.data.graph_sources import is_graph_source
from tokengt.data.graph_store import source_checksum
from tokengt.data.manifest import MANIFEST
from tokengt.data.named import dataset_named, named_store, say_if_hidden
from tokengt.data.node_tables import NodeFiles
from tokengt.data.parts import Parts, kept_parts
from tokengt.data.progress import progress_bar
from tokengt.data.sheets import VECTOR_SHEETS, Sheet, check_vector_ending
from tokengt.data.store import Store
from tokengt.files import checksum, ready_to_write
from tokengt.inference import Predictor
from tokengt.interop.molecules import DEFAULT_POLICY
from tokengt.level import Level
from tokengt.models.passes import Over
from tokengt.training.processes import Device
from tokengt.workflow.inputs import unlabelled_graphs
from tokengt.workflow.node_rows import node_source
from tokengt.workflow.pace import Pace
from tokengt.workflow.questions import Answered, Question, prediction_question, prediction_sheet
from tokengt.workflow.rows import Chunks, Source, Workers, graph_chunk, graph_head, table_source
from tokengt.workflow.stores import store_source

# Endings of files that are no CSV: whoever asks for one would open something else than it says.
_OTHER_ENDINGS = (".gz", ".json", ".npz", ".parquet", ".pt", ".sdf", ".smi", ".tsv", ".xls", ".xlsx", ".xz", ".zip")
# Parts of another version, which a killed call may have left, are not mixed with ours.
_PARTS_VERSION = 1


@dataclass(frozen=True)
class Predicted:
    """How many rows came in, and how many of them have no prediction.

    ``overflowed`` of the ``bad`` ones could be read, but the model gives no finite number for them. ``pace`` says how
    fast it was.
    """

    rows: int
    bad: int
    overflowed: int = 0
    pace: Pace | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        unread = self.bad - self.overflowed
        return (
            f"{self.rows:,} rows"
            + (f", {unread:,} of which could not be read" if unread else "")
            + (f", {self.overflowed:,} for which the model gives no finite number" if self.overflowed else "")
        )


def predict_file(
    run: Predictor | str | Path,
    source: str | Path | NodeFiles,
    out: str | Path,
    *,
    smiles: str | None = None,
    draws: int = 1,
    over: Over = "identifiers",
    interval: float | None = None,
    neighbours: bool = False,
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    workers: int | None = None,
    engine: engines.Engine = "processes",
    quiet: bool = False,
) -> Predicted:
    """Write ``out``, a CSV with the columns of ``source``, then the predictions, then the reason of a bad row.

    A source of graphs has no columns: its CSV has the number of the graph (and of its node or edge) instead. A store of
    molecules has the line of each and its SMILES. A file that exists is replaced only if ``overwrite`` says so. A call
    that was killed goes on where it was when it is made again.

    Args:
        run: a run, or its folder.
        source: a table of molecules, a file or folder of graphs, a store, the name of a data set, or the tables of a
            graph's nodes and edges (and pairs, of links).
        out: the file to write.
        smiles: the column of SMILES.
        draws: passes of each model that are averaged.
        over: what differs between them.
        interval: of numbers: add ``low_<target>`` and ``high_<target>``, which are to hold this share of the labels.
        neighbours: add ``similarity`` (Tanimoto, to the most similar training molecule), ``distance`` (of the model's
            vectors; 1 is usual) and ``unlike_training`` (yes or no); an interval brings them along where the run can
            tell.
        overwrite: replace ``out``.
        device: where the model runs.
        max_atoms: how large a molecule may be, instead of the run's own limit.
        workers: processes that read molecules, all cores if None; with Ray, tasks at a time.
        engine: "processes", or "ray" for a cluster.
        quiet: say nothing on stderr.
    """
    source, out = source if isinstance(source, NodeFiles) else Path(source), Path(out)
    if out.suffix.lower() in _OTHER_ENDINGS:
        raise ValueError(f"{out}: predictions are written as CSV; choose a name that ends in .csv")
    beside = Workers(workers, engine, not quiet)
    _check_out(source, out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    question = prediction_question(predictor, draws, over, interval, neighbours)
    rows = _opened(predictor, source, smiles, predictor.spec.level, beside)
    sheet = prediction_sheet(predictor, question, rows.head)
    return _written(predictor, rows, question, sheet, out, overwrite, not quiet, "predicting")


def embed_file(
    run: Predictor | str | Path,
    source: str | Path | NodeFiles,
    out: str | Path,
    *,
    smiles: str | None = None,
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    workers: int | None = None,
    engine: engines.Engine = "processes",
    quiet: bool = False,
) -> Predicted:
    """Write ``out``, one vector per row of ``source`` (per graph, where it holds graphs), as its ending says.

    ``.csv`` and ``.parquet`` have the columns of ``source`` (or ``graph``), then ``vector_0``, ``vector_1``, ..., then
    ``reason``: why a row has no vector. ``.npz`` has ``vectors`` [rows, dim] (NaN for such a row), ``valid`` [rows],
    ``lines`` [rows] and the ``reasons`` of the rows that are not valid; ``np.load`` reads it without pickle. A file
    that exists is replaced only if ``overwrite`` says so. The arguments are those of :func:`predict_file`.
    """
    source, out = source if isinstance(source, NodeFiles) else Path(source), Path(out)
    check_vector_ending(out)
    beside = Workers(workers, engine, not quiet)
    _check_out(source, out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    rows = _opened(predictor, source, smiles, "graph", beside)
    width = _width(predictor, rows)
    sheet = VECTOR_SHEETS[out.suffix.lower()](rows.head, width)
    options = ("embed", out.suffix.lower())
    question = Question(
        lambda graphs: Answered(predictor.embed_graphs(graphs)), "graph", width, np.float32, False, options
    )
    return _written(predictor, rows, question, sheet, out, overwrite, not quiet, "embedding")


def _width(predictor: Predictor, source: Source) -> int:
    """The length of a vector; a user's own module need not say it, and is asked for one vector."""
    try:
        return predictor.width
    except ValueError:
        return predictor.embed_graphs(source.example()).shape[1]


def _check_out(source: Path | NodeFiles, out: Path, overwrite: bool) -> None:
    """Whatever is wrong with the file to write is said before any work is done."""
    ready_to_write(out)
    for file in source.paths if isinstance(source, NodeFiles) else (source,):
        if os.path.realpath(out) == os.path.realpath(file):
            raise ValueError(f"the file to write is the input {file} itself; choose another name")
    _check_free(out, overwrite)


def _check_free(out: Path, overwrite: bool) -> None:
    if out.is_file() and not overwrite:
        raise ValueError(f"{out} exists; choose another name, or have it replaced (--force, in Python overwrite=True)")


def _opened(
    predictor: Predictor, source: Path | NodeFiles, smiles: str | None, level: Level, workers: Workers
) -> Source:
    """The rows of a table, a store, a file of graphs, a data set by its name, or tables of nodes and edges."""
    if isinstance(source, NodeFiles):
        return node_source(predictor, source, level)
    say_if_hidden(source, workers.shown)
    dataset = dataset_named(source)
    if dataset is not None:
        policy = predictor.spec.molecules or DEFAULT_POLICY
        store = named_store(dataset, policy, workers=workers.count, progress=workers.shown)
        return store_source(predictor, store, level, workers.shown)
    is_store = (source / MANIFEST).is_file()
    if not is_store and not is_graph_source(source):
        return table_source(predictor, source, smiles, workers)
    if smiles is not None:
        what = "is a store" if is_store else "holds graphs"
        raise ValueError(f"{source} {what} and no table of molecules: a column of SMILES means nothing there")
    if is_store:
        return store_source(predictor, Store.open(source), level, workers.shown)
    return _graph_source(predictor, source, level)


def _graph_source(predictor: Predictor, source: Path, level: Level) -> Source:
    """The graphs of a PyG file or a folder of NetworkX JSON, which are read at once."""
    found = unlabelled_graphs(predictor.spec, source)

    def named(line: int, reason: str) -> str:
        return f"{found.files[line - 1]}: {reason}" if found.files else reason

    def chunks(done: Collection[int]) -> Chunks:
        if 0 not in done:
            yield graph_chunk(0, found.graphs, found.lines.numpy(), found.rejected, level, named)

    rows = found.graphs.level_rows(level).total + len(found.rejected)
    return Source(
        source,
        graph_head(level),
        source_checksum(source),
        rows,
        chunks,
        lambda: found.graphs.select([0]),
        rows,
        featurised=False,
    )


def _written(
    predictor: Predictor,
    source: Source,
    question: Question,
    sheet: Sheet,
    out: Path,
    overwrite: bool,
    shown: bool,
    label: str,
) -> Predicted:
    """Have every chunk answered and the file written."""
    several = source.most > source.chunk_rows
    pace = Pace("featurisation" if source.featurised else "reading", source.workers)
    made_of = [_PARTS_VERSION, source.chunk_rows, source.key, source.head, question.options, overwrite]
    fingerprint = checksum(json.dumps([made_of, _of_run(predictor)]).encode())[:16]
    check = partial(_check_free, out, overwrite)
    with kept_parts(out, fingerprint, sheet, apart=several, shown=shown, check=check) as parts:
        done = parts.counts.rows
        with progress_bar(source.most, "rows", label, done=done, shown=shown) as advance:
            _answer_all(predictor, source, question, parts, pace, advance)
        counts = parts.counts
        if not counts.rows and not sheet.may_be_empty:
            raise ValueError(f"{source.name} has no rows; expected at least one")
        with pace.of("writing"):
            parts.join(out)
    pace.rows = counts.rows - done
    return Predicted(*counts, pace.stop())


def _answer_all(
    predictor: Predictor,
    source: Source,
    question: Question,
    parts: Parts,
    pace: Pace,
    advance: Callable[[int], object],
) -> None:
    # The first rows take a GPU much longer than those after them: kernels are built by them.
    starts = _on_gpu(predictor)
    # Closed whatever happens: the processes that read for it end with it.
    with closing(source.chunks(frozenset(parts.done))) as chunks:
        while True:
            with pace.of("reading"):
                chunk = next(chunks, None)
            if chunk is None:
                break
            if starts and pace.spent["model"]:
                pace.has_started()
                starts = False
            with pace.of("model"):
                answers, counts = question.answers(predictor, chunk)
            with pace.of("writing"):
                parts.put(chunk.number, answers, counts)
            advance(counts.rows)
    with pace.of("writing"):
        parts.finish()


def _on_gpu(predictor: Predictor) -> bool:
    return predictor.device.type == "cuda"


def _of_run(predictor: Predictor) -> list[str]:
    """What tells this run, on this kind of machine, from any other: settings, weights, and who computes with them."""
    digest = hashlib.sha256()
    for member in predictor.members:
        digest.update(json.dumps([to_dict(member.task), to_dict(member.descriptors)]).encode())
        tensors = {name: value for name, value in member.model.state_dict().items() if isinstance(value, Tensor)}
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    spec = predictor.spec
    policy = None if spec.molecules is None else to_dict(spec.molecules)
    settings = json.dumps([to_dict(spec.model), to_dict(spec.task), spec.level, policy], sort_keys=True)
    return [
        digest.hexdigest(),
        settings,
        predictor.device.type,
        torch.__version__,
        f"{torch.get_num_threads()} threads",
    ]
