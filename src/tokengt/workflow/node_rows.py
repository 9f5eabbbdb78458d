"""The nodes of a table, or the pairs of one, to predict: one row each, with the table's own columns."""

import pickle
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tokengt.data.manifest import Recipe
from tokengt.data.node_tables import NodeFiles, read_node_tables
from tokengt.data.sheets import PackedCells
from tokengt.inference import Predictor
from tokengt.level import Level
from tokengt.workflow.rows import Chunk, Chunks, Source, graph_chunk


def node_source(predictor: Predictor, files: NodeFiles, level: Level) -> Source:
    """The graph of two tables, read as those that the run was trained on; it may be another graph than theirs.

    Raises:
        ValueError: one sentence: the run was trained on something else, or a column is missing.
    """
    spec = predictor.spec
    if spec.tables is None:
        raise ValueError(
            "this run was not trained on a table of nodes and one of edges; give it data like that it was trained on"
        )
    if level == "graph":
        # A vector of the whole graph asks about no node and no pair.
        found = read_node_tables(replace(files, pairs=None), Recipe(level="node"), spec.tables)
    else:
        found = read_node_tables(files, Recipe(level=level), spec.tables)
    graphs, lines = found.labelled.graphs, np.array(found.lines, dtype=np.int64)

    def chunks(done: Collection[int]) -> Chunks:
        if 0 in done:
            return
        if level == "graph":
            yield graph_chunk(0, graphs, np.ones(1, dtype=np.int64), (), level)
        else:
            kept = np.array([place for place in range(len(lines)) if place not in found.problems], dtype=np.int64)
            asked = graphs if len(kept) else None
            yield Chunk(0, PackedCells(pickle.dumps(found.rows)), lines, asked, kept, dict(found.problems))

    head = ("graph",) if level == "graph" else found.head
    rows = 1 if level == "graph" else len(lines)
    return Source(
        files.paths[-1 if level == "link" else 0],
        head,
        files.checksum(),
        rows,
        chunks,
        lambda: graphs,
        rows,
        featurised=False,
    )
