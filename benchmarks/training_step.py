"""A whole CPU training step on molecules: our packed model against the same model over a padded batch.

A step is forward, L1 loss, backward, gradient clipping and AdamW. The padded reference is what the usual code does:
the same weights, tokens and identifiers, but every layer runs on [graphs, longest, dim] with a key padding mask. Both
give the same outputs (checked before timing), and both are timed in turns in one run.

    TOKENGT_DATA=/path/to/data python benchmarks/training_step.py
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from molecules import interleaved, median_ratio, read_molecules
from torch import Tensor, nn

from tokengt import EncoderConfig, GraphBatch, LaplacianIds, SoftmaxConfig, TokenGT, TokenGTConfig
from tokengt.bench.padded import PaddedTokenGT
from tokengt.presets import molecule_tokens

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


def training_step(system: nn.Module, batch: GraphBatch, target: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(system.parameters(), lr=1e-5)

    def step() -> None:
        system.train()
        loss = F.l1_loss(system(batch), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(system.parameters(), 5.0)
        optimizer.step()

    return step


def inference(system: nn.Module, batch: GraphBatch) -> Callable[[], None]:
    @torch.no_grad()
    def infer() -> None:
        system.eval()
        system(batch)

    return infer


@torch.no_grad()
def check_same(packed: TokenGT, padded: PaddedTokenGT, batch: GraphBatch) -> None:
    gap = float((packed.eval()(batch) - padded.eval()(batch)).abs().max())
    assert gap < 1e-5, f"packed and padded outputs differ by {gap}"


def compare(batch: GraphBatch, phase: str, layout: Layout, dropout: float) -> list[dict[str, Any]]:
    """Packed and padded, one row each."""
    packed = build(layout, dropout)
    padded = PaddedTokenGT(packed)
    check_same(packed, padded, batch)
    tokens = packed.encode(batch).segments
    target = torch.randn(batch.num_graphs, 1, generator=torch.Generator().manual_seed(0))
    systems = {"packed": packed, "padded": padded}
    calls = {
        name: training_step(system, batch, target) if phase == "train" else inference(system, batch)
        for name, system in systems.items()
    }
    taken = interleaved(calls, REPEATS)
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
        for name in systems
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
        # Longest first, as the training loop hands them on; to the padded reference the order is all one.
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
