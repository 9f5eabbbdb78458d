"""Training of the 15 heads: each is shown its basis tensor and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.experiments.basis.drawing import FreshIdentifiers
from tokengt.experiments.basis.errors import EAGER, Kernels, matmul_precision
from tokengt.experiments.basis.groups import TokenGroup, token_features
from tokengt.experiments.basis.settings import NUM_HEADS, BasisConfig
from tokengt.models.tokengt.scores import FirstBlockScores

# Identifiers and token features are made for this many steps at once, because one large call is faster than many.
_BLOCK = 32


@dataclass(frozen=True, eq=False)
class GroupShare:
    """The graphs of one step that belong to one group."""

    group: TokenGroup
    chosen: Int[Tensor, " chosen"]
    features: Float[Tensor, "chosen width features"]

    def errors(
        self, scores: Float[Tensor, "chosen heads width width"], kernel: Callable[..., Tensor]
    ) -> Float[Tensor, "chosen heads width"]:
        group = self.group
        return kernel(scores, *(group.pick(part, self.chosen) for part in (group.targets, group.columns, group.rows)))


def train(
    network: FirstBlockScores,
    groups: Sequence[TokenGroup],
    source: FreshIdentifiers,
    config: BasisConfig,
    *,
    batch: int,
    seed: int,
    kernels: Kernels = EAGER,
    progress: Callable[[int], None] | None = None,
) -> Float[Tensor, " steps"]:
    """The loss of every step, dropout on. Within a step nothing waits for the device."""
    parameters = network.train().trained()
    device = parameters[0].device
    # Losses stay on the device until the end, because reading one would make the host wait for it.
    losses = torch.zeros(config.steps, device=device)
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0, fused=device.type == "cuda")
    plan = batches([len(group.members) for group in groups], batch, torch.Generator().manual_seed(seed))
    with matmul_precision(config.precision) as dtype:
        for start in range(0, config.steps, _BLOCK):
            block = [next(plan) for _ in range(min(_BLOCK, config.steps - start))]
            for update, parts in enumerate(_steps(network, groups, source, block), start + 1):
                for settings in optimizer.param_groups:
                    settings["lr"] = config.rate(update)
                loss = basis_loss(network, parts, dtype, kernels)
                optimizer.zero_grad()
                torch.autograd.backward([loss])
                torch.nn.utils.clip_grad_norm_(parameters, config.clip)
                optimizer.step()
                losses[update - 1] = loss.detach()
            if progress is not None:
                progress(start + len(block))
    network.eval().fold()
    return losses


def basis_loss(
    network: FirstBlockScores, parts: Sequence[GroupShare], dtype: torch.dtype = torch.float32, kernels: Kernels = EAGER
) -> Float[Tensor, ""]:
    """sum (alpha - B)^2 over graphs, heads, rows and columns, divided by graphs and heads."""
    scores = network.scores([part.features for part in parts], dtype, kernels.norm)
    total = torch.stack([part.errors(s, kernels.errors).sum() for part, s in zip(parts, scores, strict=True)]).sum()
    return total / (NUM_HEADS * sum(len(part.chosen) for part in parts))


def batches(sizes: Sequence[int], batch: int, generator: torch.Generator) -> Iterator[list[Int[Tensor, " _"]]]:
    """Endless epochs in random order: for every step the places of its graphs in each group, given the groups' sizes.

    Every step has ``batch`` graphs: what an epoch has left over begins the next step.
    """
    group_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    place_of = torch.cat([torch.arange(size) for size in sizes])
    waiting = place_of[:0]
    while True:
        while len(waiting) < batch:
            waiting = torch.cat([waiting, torch.randperm(len(group_of), generator=generator)])
        chosen, waiting = waiting[:batch], waiting[batch:]
        yield [place_of[chosen[group_of[chosen] == group]] for group in range(len(sizes))]


def _steps(
    network: FirstBlockScores,
    groups: Sequence[TokenGroup],
    source: FreshIdentifiers,
    block: Sequence[Sequence[Int[Tensor, " _"]]],
) -> Iterator[list[GroupShare]]:
    """What every step of a block sees, made for all of them at once and cut step by step."""
    device = source.generator.device
    by_group = list(zip(*block, strict=True))
    chosen = [torch.cat(places).to(device) for places in by_group]
    graphs = torch.cat([group.members[places] for group, places in zip(groups, chosen, strict=True)])
    drawn = source.draw(graphs)
    ids = [None] * len(groups) if drawn is None else torch.split(drawn, [len(places) for places in chosen])
    cut: list[list[GroupShare]] = [[] for _ in block]
    for group, places, own, lengths in zip(groups, chosen, ids, by_group, strict=True):
        features = token_features(group, places, own, kinds=network.num_kinds, first_order=source.config.first_order)
        sizes = [len(step) for step in lengths]
        for step, pieces in enumerate(zip(torch.split(places, sizes), torch.split(features, sizes), strict=True)):
            if sizes[step]:
                cut[step].append(GroupShare(group, *pieces))
    yield from cut
