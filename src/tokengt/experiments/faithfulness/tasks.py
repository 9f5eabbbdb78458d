"""Three tasks whose answer is known to come from certain atoms, which their element alone does not tell.

Every graph is a made-up molecule: a random tree of carbons with at most three bonds each, to which nitrogens, oxygens
and rings are added. Features are the element of an atom and the order of a bond and nothing else. The label is how
often a motif occurs (0, 1 or 2 times, equally often):

* "group": an amide, N bonded to a C that has a double bond to O. Other C=O and other N stand apart from each other.
  True atoms: N, C and O of every amide.
* "pair": N and O three bonds apart. Others are at other distances. True atoms: both of every such pair.
* "ring": a ring of five. There are rings of six as well, and N and O anywhere. True atoms: those of the rings of five.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.graph import Graph

TaskName = Literal["group", "pair", "ring"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
CARBON, NITROGEN, OXYGEN = 0, 1, 2
SINGLE, DOUBLE = 0, 1
# N and O of a pair are so many bonds apart.
APART = 3
# At most so many atoms of an element, or groups of a kind; and bonds of an atom.
MOST, MOST_BONDS = 3, 3


@dataclass(frozen=True, eq=False)
class Labelled:
    """Graphs with the number of motifs in each, and which atoms they are made of."""

    graphs: GraphBatch
    counts: Float[Tensor, "graphs 1"]
    truth: Bool[Tensor, " nodes"]


class _Sketch:
    """A molecule that is being made."""

    def __init__(self, carbons: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.elements: list[int] = []
        self.bonds: list[tuple[int, int, int]] = []
        self.truth: set[int] = set()
        for _ in range(carbons):
            self.grow(CARBON)

    def degree(self, atom: int) -> int:
        return sum(atom in bond[:2] for bond in self.bonds)

    def free(self) -> list[int]:
        """Carbons that can have one more bond."""
        return [a for a, kind in enumerate(self.elements) if kind == CARBON and self.degree(a) < MOST_BONDS]

    def add(self, element: int, to: int | None, order: int = SINGLE) -> int:
        self.elements.append(element)
        if to is not None:
            self.bonds.append((to, len(self.elements) - 1, order))
        return len(self.elements) - 1

    def grow(self, element: int) -> int:
        """One more atom somewhere."""
        places = self.free()
        return self.add(element, int(self.rng.choice(places)) if places else None)

    def ring(self, size: int) -> list[int]:
        """A ring of carbons, joined to the rest by one bond."""
        first = self.grow(CARBON)
        members = [first]
        for _ in range(size - 1):
            members.append(self.add(CARBON, members[-1]))
        self.bonds.append((members[-1], first, SINGLE))
        return members

    def steps(self, start: int) -> NDArray[np.int64]:
        """How many bonds away every atom is."""
        near: dict[int, list[int]] = {atom: [] for atom in range(len(self.elements))}
        for u, v, _ in self.bonds:
            near[u].append(v)
            near[v].append(u)
        found, queue = np.full(len(self.elements), -1), deque([start])
        found[start] = 0
        while queue:
            atom = queue.popleft()
            for other in near[atom]:
                if found[other] < 0:
                    found[other] = found[atom] + 1
                    queue.append(other)
        return found

    def graph(self) -> tuple[Graph, NDArray[np.bool_]]:
        """With atoms in random order, so that their numbers tell nothing."""
        order = self.rng.permutation(len(self.elements))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ends = place[np.array([bond[:2] for bond in self.bonds])].T
        kinds = np.array([bond[2] for bond in self.bonds])
        truth = np.zeros(len(order), dtype=bool)
        truth[place[sorted(self.truth)]] = True
        graph = Graph(
            torch.from_numpy(np.array(self.elements)[order])[:, None],
            torch.from_numpy(np.concatenate([ends, ends[::-1]], 1)),
            torch.from_numpy(np.concatenate([kinds, kinds]))[:, None],
        )
        return graph, truth


def generate(task: TaskName, count: int, seed: int) -> Labelled:
    """So many graphs of a task; those with 0, 1 and 2 motifs are equally many. The same seed gives the same graphs."""
    if task not in TASKS:
        raise ValueError(f"task is {task!r}; expected one of {', '.join(TASKS)}")
    rng = np.random.default_rng([TASKS.index(task), seed])
    graphs, truths, counts = [], [], []
    for number in range(count):
        motifs = number % 3
        sketch = _MAKERS[task](rng, motifs)
        while sketch is None:
            sketch = _MAKERS[task](rng, motifs)
        graph, truth = sketch.graph()
        graphs.append(graph)
        truths.append(truth)
        counts.append(float(motifs))
    return Labelled(GraphBatch.collate(graphs), torch.tensor(counts)[:, None], torch.from_numpy(np.concatenate(truths)))


def _group(rng: np.random.Generator, motifs: int) -> _Sketch | None:
    """``motifs`` amides, and beside them C=O without N and N on other carbons, up to three of each in all."""
    sketch = _Sketch(int(rng.integers(8, 13)), rng)
    carbonyls: list[int] = []
    for number in range(int(rng.integers(motifs, MOST + 1))):
        places = [atom for atom in sketch.free() if sketch.degree(atom) < MOST_BONDS - 1 and atom not in carbonyls]
        if not places:
            return None
        carbonyls.append(int(rng.choice(places)))
        oxygen = sketch.add(OXYGEN, carbonyls[-1], DOUBLE)
        if number < motifs:
            sketch.truth |= {carbonyls[-1], oxygen, sketch.add(NITROGEN, carbonyls[-1])}
    for _ in range(int(rng.integers(motifs, MOST + 1)) - motifs):
        places = [atom for atom in sketch.free() if atom not in carbonyls]
        if not places:
            return None
        sketch.add(NITROGEN, int(rng.choice(places)))
    return sketch


def _pair(rng: np.random.Generator, motifs: int) -> _Sketch | None:
    """Up to three N and O at random; kept if so many pairs of them are at the distance."""
    sketch = _Sketch(int(rng.integers(7, 11)), rng)
    numbers = rng.integers(0, MOST + 1, 2)
    if len(sketch.free()) < numbers.sum():
        return None
    nitrogens, oxygens = (
        [sketch.grow(element) for _ in range(count)] for element, count in zip((NITROGEN, OXYGEN), numbers, strict=True)
    )
    steps = [sketch.steps(atom) for atom in nitrogens]
    found = [(n, o) for n, own in zip(nitrogens, steps, strict=True) for o in oxygens if own[o] == APART]
    if len(found) != motifs:
        return None
    sketch.truth = {atom for pair in found for atom in pair}
    return sketch


def _ring(rng: np.random.Generator, motifs: int) -> _Sketch | None:
    """``motifs`` rings of five, whatever these are 0, 1 or 2 rings of six, and up to three N and O anywhere."""
    sketch = _Sketch(int(rng.integers(3, 6)), rng)
    sizes = [5] * motifs + [6] * int(rng.integers(0, 3))
    for size in rng.permutation(sizes):
        if not sketch.free():
            return None
        members = sketch.ring(int(size))
        if size == 5:
            sketch.truth |= set(members)
    while len(sketch.elements) < 18 and sketch.free():
        sketch.grow(CARBON)
    for element in (NITROGEN, OXYGEN):
        for atom in rng.choice(len(sketch.elements), int(rng.integers(0, MOST + 1)), replace=False):
            sketch.elements[atom] = element
    return sketch


_MAKERS = {"group": _group, "pair": _pair, "ring": _ring}
