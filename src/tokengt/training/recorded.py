"""Training steps on a GPU, recorded whole: two launches per step, whatever the model.

One recording is of the way from the numbers of a step's graphs to gradients: feed, identifiers, tokens, encoder, head,
loss and backward. The other one is of the update: clipping, AdamW, moving average. Between the two, several processes
add up their gradients, which lie in one tensor. Everything that differs between two steps (which graphs, the learning
rate) is worked out on the host for many steps at once and lies on the GPU before they begin.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from tokengt.accelerate import Recorder, fast_encoders
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.data.frames import Frame, Frames, Placement, Steps, can_be_framed, framed, on_device, row_kinds
from tokengt.kernels.tiles import StepTiles, Tiles
from tokengt.models.contract import Model
from tokengt.ragged import Segments
from tokengt.training.config import TrainingConfig
from tokengt.training.objective import Objective
from tokengt.training.optim import MovingAverage, clip_flat, set_rate
from tokengt.training.parts import Parts
from tokengt.training.tasks import Task

# Steps whose numbers are worked out at once.
_AT_ONCE = 256
# Buckets of tiles have room for a multiple of so many entries.
_MARGIN = 16


def why_not(model: Model, parts: Parts, fabric: Any) -> str | None:
    """Why whole steps cannot be recorded, as the end of a sentence; None where they can."""
    reasons = {
        "there is no GPU": fabric.device.type != "cuda",
        f"a step of {type(model).__name__} with these settings differs from the next": model.sequence_rule() is None,
        "the data is larger than half of the GPU's memory": parts.graphs.device.type != "cuda",
        "the graphs have hyperedges, sparse features, or facts of pairs of nodes": not can_be_framed(parts.graphs),
        "the graphs come without facts that the model needs": any(
            parts.graphs.fact(fact.name) is None for fact in model.config.facts()
        ),
        "the weights lie in pieces on several GPUs": any(hasattr(p, "device_mesh") for p in model.parameters()),
        "there is nothing to train on": not len(parts.train.places),
        "the links that steps ask about differ in number": parts.links is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class RecordedSteps:
    """Training steps of one model, replayed; with ``training.cuda_graphs`` false the same steps, kernel by kernel.

    Args:
        fabric: processes, device and autocast.
        model: the accelerated model; its encoder attends by tiles that are given to it.
        parts: the data, on the GPU.
        task: the loss.
        config: the recipe.
        parameters: those that are trained.
        optimizer: theirs.
        average: their moving average, if there is one.
        usual: the graphs of this process in some usual steps, which the sizes of frames are chosen by.
    """

    def __init__(
        self,
        fabric: Any,
        model: Model,
        parts: Parts,
        task: Task | Objective,
        config: TrainingConfig,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        average: MovingAverage | None,
        usual: Sequence[Int[Tensor, " _"]],
    ) -> None:
        rule = model.sequence_rule()
        assert rule is not None
        self._fabric, self._model, self._parts, self._task, self._config = fabric, model, parts, task, config
        self._optimizer, self._average, self._parameters = optimizer, average, list(parameters)
        self._rule = rule
        self._kinds = row_kinds(parts.graphs)
        # A process may have no graph of its own in any usual step, where there are more processes than graphs.
        usual = [step for step in usual if len(step)] or [parts.train.places[:1]]
        self._frames = Frames(self._kinds, usual)
        self._buffers: dict[int, _Buffers] = {}
        self._draws_ids = True  # Until the model says otherwise.
        self.recorder = Recorder(enabled=config.cuda_graphs)
        device = fabric.device
        # All gradients lie in one tensor: it is set to zero, added up over processes and scaled as one.
        self._flat = torch.zeros(sum(p.numel() for p in parameters), device=device, dtype=parameters[0].dtype)
        self._gradients = _views(self._flat, self._parameters)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        self._rounded = _Rounded(model, self._parameters, fabric)
        # The rate's place in the schedule and the like, and the loss of every step of a run of _AT_ONCE.
        self._numbers = torch.zeros(4, dtype=torch.float64, device=device)
        self._losses = torch.zeros(_AT_ONCE, dtype=torch.float64, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._kept: list[Float[Tensor, " steps"]] = []
        self._begun = self._done = 0
        self._tiles = self._decide_tiles()
        self._room = self._tiles_needed(usual)

    @property
    def applies(self) -> bool:
        """Whether our own kernels attend to these sequences: others plan their work on the host, batch by batch."""
        return self._tiles is not None

    def run(
        self,
        steps: Sequence[Sequence[Int[Tensor, " _"]]],
        counts: Sequence[int],
        rates: Sequence[float],
        progress: Sequence[float],
        seeds: Sequence[int],
        first: int,
    ) -> Iterator[int]:
        """Take these steps and yield the labels of each, when its kernels are on their way.

        Args:
            steps: the graphs of every step, in the pieces that are this process's.
            counts: labels of every step, of all processes.
            rates: the learning rate of every step.
            progress: the share of the training that is done at every step.
            seeds: what the draws of every step begin with.
            first: how many steps were taken before these.
        """
        for begin in range(0, len(steps), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            feed = self._feed(steps[some])
            on_host = self._host_numbers(counts[some], rates[some], progress[some], first + begin)
            numbers = on_device(on_host, self._fabric.device)
            self._place.zero_()
            self._losses.zero_()
            self._begun = self._done = 0
            for place, count in enumerate(counts[some]):
                self._seed(seeds[begin + place])
                self._numbers.copy_(numbers[place])
                if not feed[place]:
                    self._flat.zero_()
                for number, (buffers, row, graphs) in enumerate(feed[place]):
                    self._gradients_of(buffers, row, graphs, first=number == 0)
                if self._fabric.world_size > 1:
                    torch.distributed.all_reduce(self._flat)
                self.recorder.run("update", self._update)
                self._done = place + 1
                yield count
            self._keep_losses()

    def last_loss(self) -> float:
        """The loss of the step before, summed over this process's labels; the host waits for it."""
        return float(self._losses[self._done - 1])

    def take_losses(self) -> list[float]:
        """The summed losses of all steps that were not asked for yet, in their order; all processes must ask."""
        self._keep_losses()
        kept, self._kept = self._kept, []
        if not kept:
            return []
        losses = torch.cat(kept)
        if self._fabric.world_size > 1:
            torch.distributed.all_reduce(losses)
        values: list[float] = losses.tolist()
        return values

    def _keep_losses(self) -> None:
        self._kept.append(self._losses[self._begun : self._done].clone())
        self._begun = self._done

    def _decide_tiles(self) -> StepTiles | None:
        lengths = [kind.host_lengths.index_select(0, self._parts.train.places) for kind in self._kinds]
        with self._fabric.autocast():
            return self._encoder.step_tiles(self._tokens(1, *lengths), self._frames.frame(0).graphs)

    def _tokens(self, graphs: Any, nodes: Any, edges: Any, undirected: Any = 0) -> Any:
        """How many tokens so many rows of each kind are; also of offsets, which are sums of them."""
        rule = self._rule
        return rule.graph * graphs + rule.node * nodes + rule.edge * edges + rule.undirected * undirected

    @property
    def _encoder(self) -> FastEncoder:
        (encoder,) = fast_encoders(self._model)
        return encoder

    def _feed(self, steps: Sequence[Sequence[Tensor]]) -> list[list[tuple["_Buffers", Tensor, Tensor]]]:
        """For every piece of every step, in order: the memory that it is worked on in, what goes there, its graphs.

        A piece without graphs has no gradient, and is left out.
        """
        pieces = [(place, piece) for place, step in enumerate(steps) for piece in step if len(piece)]
        fed: list[list[tuple[_Buffers, Tensor, Tensor]]] = [[] for _ in steps]
        levels = np.array(self._frames.levels([piece for _, piece in pieces]) if pieces else [], dtype=int)
        filled = {}
        for level in np.unique(levels).tolist():
            chosen = np.flatnonzero(levels == level).tolist()
            filled[level] = chosen, self._frames.fill(self._frames.frame(level), [pieces[n][1] for n in chosen])
        self._make_room([steps for _, steps in filled.values()])
        entries: dict[int, tuple[_Buffers, Tensor, Tensor]] = {}
        for level, (chosen, some) in filled.items():
            table = self._table(some)
            buffers = self._buffers_of(level, some.frame, table[0])
            rows = on_device(table, self._fabric.device)
            for number, row in zip(chosen, rows, strict=True):
                entries[number] = buffers, row, pieces[number][1]
        for number, (place, _) in enumerate(pieces):
            fed[place].append(entries[number])
        return fed

    def _sequences(self, some: Steps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[steps, graphs] where every sequence begins, and how long it is."""
        offsets = self._tokens(np.arange(some.frame.graphs + 1), *some.offsets)
        return offsets[:, :-1], np.diff(offsets, axis=1)

    def _make_room(self, filled: Sequence[Steps]) -> None:
        """More entries in a bucket than any step before had: other recordings, which have room for them."""
        if self._tiles is None:
            return
        for some in filled:
            needed = self._tiles.needed(self._sequences(some)[1])
            if (needed > self._room).any():
                self._room = np.maximum(self._room, _with_margin(needed))
                self._buffers.clear()
                self.recorder.clear()

    def _tiles_needed(self, usual: Sequence[Tensor]) -> NDArray[np.int64]:
        if self._tiles is None:
            return np.zeros(0, dtype=np.int64)
        levels = np.array(self._frames.levels(usual))
        most = np.zeros(len(self._tiles.joins), dtype=np.int64)
        for level in np.unique(levels).tolist():
            some = self._frames.fill(
                self._frames.frame(level), [usual[n] for n in np.flatnonzero(levels == level).tolist()]
            )
            most = np.maximum(most, self._tiles.needed(self._sequences(some)[1]))
        return _with_margin(most)

    def _table(self, some: Steps) -> NDArray[np.int64]:
        """[steps, columns] one row per step: where its graphs lie, and the entries of its tiles, two in a column."""
        if self._tiles is None:
            return some.numbers
        items = self._tiles.items(*self._sequences(some), self._room.tolist()).reshape(len(some.places), -1)
        even = np.pad(items, ((0, 0), (0, items.shape[1] % 2)))
        return np.concatenate([some.numbers, np.ascontiguousarray(even).view(np.int64)], 1)

    def _buffers_of(self, level: int, frame: Frame, example: NDArray[np.int64]) -> "_Buffers":
        if level not in self._buffers:
            row = torch.zeros(len(example), dtype=torch.int64, device=self._fabric.device)
            # Only the sizes of what the host knows are read, so that any step of the frame will do.
            host = torch.from_numpy(example.copy()) if row.is_cuda else row
            room: list[int] = self._room.tolist()
            tiles = None
            if self._tiles is not None:
                columns = len(example) - -(-3 * sum(room) // 2)
                items = row[columns:].view(torch.int32)[: 3 * sum(room)].view(3, -1)
                tiles = Tiles(items, self._tiles.buckets(room))
            self._buffers[level] = _Buffers((level, *room), row, Placement(frame, row, host), tiles)
        return self._buffers[level]

    def _host_numbers(
        self, counts: Sequence[int], rates: Sequence[float], progress: Sequence[float], first: int
    ) -> NDArray[np.float64]:
        """[steps, 4] what a loss is multiplied by, learning rate, weight of the moving average, share that is done."""
        average = self._average
        weights = [0.0 if average is None else average.weight(first + place) for place in range(len(counts))]
        return np.stack([1 / np.maximum(counts, 1), np.array(rates), np.array(weights), np.array(progress)], 1)

    def _seed(self, seed: int) -> None:
        device = self._fabric.device
        generator = (
            torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
        )
        generator.manual_seed(seed)

    def _gradients_of(self, buffers: "_Buffers", row: Tensor, graphs: Int[Tensor, " graphs"], *, first: bool) -> None:
        buffers.row.copy_(row)
        self._draw_ids(buffers, graphs)
        name = ("gradients", buffers.name, first)
        self.recorder.run(name, lambda: self._accumulate(buffers, first), repeatable=True)

    def _draw_ids(self, buffers: "_Buffers", graphs: Int[Tensor, " graphs"]) -> None:
        """Identifiers that cannot be drawn inside a recording, written where it reads them."""
        if not self._draws_ids:
            return
        nodes = Segments.from_lengths(self._kinds[0].host_lengths.index_select(0, graphs), self._fabric.device)
        drawn = self._model.drawn_node_ids(nodes)
        self._draws_ids = drawn is not None
        if drawn is None:
            return
        if buffers.node_ids is None:
            buffers.node_ids = drawn.new_zeros(buffers.placement.frame.rows[0], drawn.shape[1])
        buffers.node_ids[: len(drawn)].copy_(drawn)

    def _accumulate(self, buffers: "_Buffers", first: bool) -> None:
        """Write the gradients of the first piece of a step, or add those of another; and its loss to the step's."""
        batch, rows, own = framed(self._parts.graphs, buffers.placement, self._parts.level)
        targets = torch.where(own[:, None], self._parts.train.targets.index_select(0, rows), torch.nan)
        given = {} if buffers.node_ids is None else {"node_ids": buffers.node_ids}
        tiled = nullcontext() if buffers.tiles is None else self._encoder.given(buffers.tiles)
        with self._fabric.autocast(), tiled:
            self._rounded.update()
            output = functional_call(self._model, self._rounded.weights, (batch,), given)
        loss = self._task.loss_sum(output, targets)
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            loss * self._numbers[0].to(loss.dtype), self._rounded.leaves, allow_unused=True
        )
        summed = loss.detach().double()[None]
        # From here on nothing is allocated, so that the work can be repeated when it found no memory.
        self._keep_gradients(found, first)
        self._losses.index_add_(0, self._place, summed)

    def _keep_gradients(self, found: Sequence[Tensor | None], first: bool) -> None:
        """Write gradients where they belong, or add them to what lies there: one launch for all of a type."""
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for own, new in zip(self._gradients, found, strict=True):
            if new is not None:
                by_type.setdefault(new.dtype, []).append((own, new))
        for pairs in by_type.values():
            kept, others = [own for own, _ in pairs], [new for _, new in pairs]
            if first:
                torch._foreach_copy_(kept, others)
            else:
                torch._foreach_add_(kept, others)

    def _update(self) -> None:
        """Clip, AdamW, moving average; then the next step's loss has a place of its own."""
        if self._config.clip:
            clip_flat(self._flat, self._config.clip)
        set_rate(self._optimizer, self._numbers[1], self._numbers[3])
        self._optimizer.step()
        if self._average is not None:
            self._average.update_by(self._numbers[2].to(self._flat.dtype))
        self._place.add_(1)


@dataclass(eq=False)
class _Buffers:
    """The memory that steps of one frame are worked on in; a recording reads it."""

    name: tuple[int, ...]
    row: Int[Tensor, " columns"]
    placement: Placement
    tiles: Tiles | None
    node_ids: Float[Tensor, "nodes width"] | None = None


class _Rounded:
    """The model's matrices as autocast would round them at every use: in memory of their own, all by one kernel.

    ``weights`` are what the model is called with in their place, by name. ``leaves`` are what gradients are asked of,
    in the order of the parameters: the rounded ones, or the parameters themselves.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], fabric: Any) -> None:
        with fabric.autocast():
            mixed = torch.is_autocast_enabled(fabric.device.type)
            dtype = torch.get_autocast_dtype(fabric.device.type)
        linear = {
            f"{name}.weight": layer.weight
            for name, layer in model.named_modules()
            if mixed and type(layer) is nn.Linear and layer.weight.requires_grad
        }
        # By identity: two layers may share one matrix, whose gradient is then that of both.
        exact = {id(weight): weight for weight in linear.values()}
        rounded = {key: weight.detach().to(dtype).requires_grad_() for key, weight in exact.items()}
        self._pairs = list(rounded.values()), list(exact.values())
        self.weights = {name: rounded[id(weight)] for name, weight in linear.items()}
        self.leaves = [rounded.get(id(parameter), parameter) for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        if self.weights:
            torch._foreach_copy_(*self._pairs)


def _views(flat: Float[Tensor, " all"], parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A part of ``flat`` for every parameter, in its shape."""
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


def _with_margin(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Room for counts that vary by their square root: four deviations more, and 0 for 0."""
    roomy: NDArray[np.int64] = -(-(entries + 4 * np.sqrt(entries).astype(np.int64)) // _MARGIN) * _MARGIN
    return roomy
