"""A whole CPU training step on molecules: the training loop's own against the same model over a padded batch.

The parts are those of ``tokengt bench``, which draws molecules like these; here they are real. The padded reference is
what the usual code does: the same weights, tokens and identifiers, but every layer runs on [graphs, longest, dim] with
a key padding mask. Both give the same outputs (checked before timing), and both are timed in turns in one run.

    TOKENGT_DATA=/path/to/data python benchmarks/training_step.py
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import torch
from molecules import interleaved, median_ratio, read_molecules

from tokengt import EncoderConfig, GraphBatch, LaplacianIds, SoftmaxConfig, TokenGT, TokenGTConfig
from tokengt.bench.config import BenchConfig
from tokengt.bench.systems import Setup, System, check_same, make_systems
from tokengt.data.facts import fact_of_all
from tokengt.presets import molecule_tokens
from tokengt.training.parts import Part, Parts
from tokengt.training.tasks import Task

LAYERS, DIM, HEADS, GRAPHS = 4, 256, 8, 256
THREADS, REPEATS = 2, 5
Layout = Literal["directed", "undirected"]


def build(layout: Layout, dropout: float) -> TokenGT:
    """A model of the paper's proportions (MLP as wide as the tokens), small enough for two cores."""
    tokens = replace(molecule_tokens(), layout=layout)
    attention = SoftmaxConfig(dropout=dropout)
    encoder = EncoderConfig(LAYERS, HEADS, mlp_dim=DIM, attention=attention, mlp_dropout=dropout, input_norm=True)
    torch.manual_seed(0)
    return TokenGT(TokenGTConfig(DIM, tokens, LaplacianIds(16), encoder))


def setup(batch: GraphBatch, layout: Layout, dropout: float) -> Setup:
    """One batch as a whole data set, with its eigenvectors computed beforehand, as in a prepared store."""
    model = build(layout, dropout)
    for fact in model.config.facts():
        batch = batch.with_fact(fact.name, fact_of_all(batch, fact), fact.per)
    targets = torch.randn(len(batch), 1, generator=torch.Generator().manual_seed(0))
    everything = Part(torch.arange(len(batch)), targets)
    parts = Parts(batch, "graph", model.costs(batch), everything, everything, everything)
    return Setup(BenchConfig(device="cpu", batch=len(batch)), model, parts, Task("regression", ("value",)))


def call(system: System, phase: str, parts: Parts) -> Callable[[], object]:
    places = parts.train.places
    return (lambda: system.take([places])) if phase == "train" else (lambda: system.infer(places))


def compare(batch: GraphBatch, phase: str, layout: Layout, dropout: float) -> list[dict[str, Any]]:
    """Packed and padded, one row each."""
    chosen = setup(batch, layout, dropout)
    systems = make_systems(chosen)
    check_same(chosen, systems)
    tokens = chosen.model.encode(batch).segments
    taken = interleaved(
        {name: call(system, phase, chosen.parts) for name, system in zip(("packed", "padded"), systems, strict=True)},
        REPEATS,
    )
    return [
        {
            "benchmark": "training_step",
            "shape": f"{LAYERS} x {DIM}, {HEADS} heads, {GRAPHS} molecules, {tokens.total / tokens.count:.1f} tokens "
            f"each, longest {tokens.max_length}",
            "system": name,
            "phase": phase,
            "layout": layout,
            "dtype": "float32",
            "dropout": dropout,
            "threads": THREADS,
            "graphs_per_s": tokens.count / statistics.median(taken[name]),
            "tokens_per_s": tokens.total / statistics.median(taken[name]),
            "ratio_to_padded": median_ratio(taken["padded"], taken[name]),
        }
        for name in taken
    ]


def measure() -> list[dict[str, Any]]:
    """Training with and without dropout, and inference, for both layouts and both samples of PCQM4Mv2."""
    torch.set_num_threads(THREADS)
    samples = dict(read_molecules(rows) for rows in ("train_first1999", "valid_1000"))
    layouts: tuple[Layout, ...] = ("directed", "undirected")
    cases = [*product(["train"], layouts, [0.0, 0.1]), *product(["infer"], layouts, [0.0])]
    rows = []
    for dataset, graphs in samples.items():
        chosen = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0))[:GRAPHS]
        # Longest first, as the training loop orders a batch; to the padded reference the order makes no difference.
        longest_first = torch.argsort(torch.tensor([graphs[i].num_nodes + graphs[i].num_edges for i in chosen]))
        batch = GraphBatch.collate(graphs).select(chosen[longest_first.flip(0)])
        for phase, layout, dropout in cases:
            rows += [row | {"dataset": dataset} for row in compare(batch, phase, layout, dropout)]
    return rows


def main() -> None:
    for row in measure():
        print(
            f"{row['dataset']:25s} {row['phase']:6s} {row['layout']:11s} dropout {row['dropout']:.1f} "
            f"{row['system']:7s}{row['graphs_per_s']:9.1f} graphs/s {row['ratio_to_padded']:6.2f}x padded"
        )


if __name__ == "__main__":
    main()
