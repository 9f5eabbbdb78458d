"""Facts of chunks, such as eigenvectors, worked out in threads while a GPU runs the model on chunks before them.

A core needs 60 ms for the eigenvectors of 2,048 molecules, mostly outside of Python. They are part of making rows into
what a model reads, so whoever waits for them waits for featurisation. How much faster prediction is for it on a GPU was
not measured on idle cores (results/LOG.md).
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import torch

from tokengt.data.engines import available_cores
from tokengt.inference import Predictor
from tokengt.structure.facts import StructureFact, with_facts
from tokengt.workflow.rows import Chunk, Chunks

# More threads than this would rather take cores from the processes that read molecules; a choice, not a measurement.
_MOST_THREADS = 8


def made_ready(predictor: Predictor, chunks: Chunks) -> Chunks:
    """The chunks with the facts that the run's models ask for, if it is a GPU that runs them.

    A CPU that runs the model has no time to spare beside it. And of links no facts are known beforehand: they are those
    of the graphs without the edges that are asked about.
    """
    # The models of a run differ in their weights and scaling only.
    facts = tuple(predictor.members[0].model.config.facts())
    if predictor.device.type != "cuda" or predictor.spec.level == "link" or not facts:
        return chunks
    return with_facts_ahead(chunks, facts, min(_MOST_THREADS, available_cores()))


def with_facts_ahead(chunks: Chunks, facts: Sequence[StructureFact], threads: int) -> Chunks:
    """The same chunks in the same order, whose graphs carry ``facts``; at most ``threads`` of them wait to be taken."""
    # One thread of torch's in each, or small eigenproblems would wait for each other.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    ready: deque[Future[Chunk]] = deque()
    with closing(chunks), pool:
        try:
            for chunk in chunks:
                ready.append(pool.submit(_with_facts, chunk, facts))
                if len(ready) > threads:
                    yield ready.popleft().result()
            while ready:
                yield ready.popleft().result()
        finally:
            # Whoever stops early does not wait for what nobody will read.
            for future in ready:
                future.cancel()


def _with_facts(chunk: Chunk, facts: Sequence[StructureFact]) -> Chunk:
    if chunk.graphs is None:
        return chunk
    try:
        return replace(chunk, graphs=with_facts(chunk.graphs, facts))
    except ValueError:
        # Some graph has no such facts. The model is asked about this chunk as it is, and finds out which one.
        return chunk
