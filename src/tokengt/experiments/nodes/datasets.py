"""The graphs whose nodes are classified, with how they are split; and what others have reached on them."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokengt.config import near
from tokengt.data.splitting import BY_CLASS, GIVEN, SplitRequest


@dataclass(frozen=True)
class NodeGraph:
    """One data set.

    Args:
        name: as ``tokengt datasets`` lists it.
        label: as the paper's table has it.
        metric: what is reported: accuracy, or ROC-AUC for two classes of which one is rare.
        published: whether it comes with its own splits, one per run; otherwise the paper's split, by the run's seed.
    """

    name: str
    label: str
    metric: str = "accuracy"
    published: bool = False

    def split(self, run: int) -> SplitRequest:
        return SplitRequest(f"{GIVEN}:{run}") if self.published else SplitRequest(BY_CLASS, run)

    @property
    def split_name(self) -> str:
        return "test (its own splits)" if self.published else "test (30 nodes of each class; 30 validate)"

    @property
    def balanced(self) -> bool:
        """Whether training lets all classes count alike, as a test of 30 nodes of each class does: what is learned from
        may have twenty times as many of one class as of another."""
        return not self.published

    @property
    def most_runs(self) -> int | None:
        """How many splits it has; None for as many as one likes."""
        return 10 if self.published else None


_ALL = (
    NodeGraph("coauthor-cs", "CS"),
    NodeGraph("coauthor-physics", "Physics"),
    NodeGraph("amazon-photo", "Photo"),
    NodeGraph("amazon-computers", "Computers"),
    NodeGraph("chameleon", "Chameleon"),
    NodeGraph("crocodile", "Crocodile"),
    NodeGraph("minesweeper", "Minesweeper", "roc_auc", published=True),
    NodeGraph("tolokers", "Tolokers", "roc_auc", published=True),
    NodeGraph("chameleon-filtered", "Chameleon (filtered)", published=True),
    NodeGraph("squirrel-filtered", "Squirrel (filtered)", published=True),
    NodeGraph("actor", "Actor", published=True),
)
GRAPHS: dict[str, NodeGraph] = {graph.name: graph for graph in _ALL}
PAPER = tuple(graph.name for graph in _ALL if not graph.published)
HETEROPHILOUS = tuple(graph.name for graph in _ALL if graph.published)

# Tuned message passing in the literature, on random splits of 60% / 20% / 20%: other nodes and many more of them test.
TUNED: Mapping[str, float] = {
    "coauthor-cs": 0.964,
    "coauthor-physics": 0.975,
    "amazon-photo": 0.968,
    "amazon-computers": 0.941,
}
TUNED_SPLIT = "tuned GNNs, published, on 60/20/20 splits (not this one)"


def graphs_named(names: tuple[str, ...]) -> list[NodeGraph]:
    """The data sets of these names; "paper" and "heterophilous" stand for several.

    Raises:
        ValueError: there is none of this name.
    """
    groups = {"paper": PAPER, "heterophilous": HETEROPHILOUS}
    wanted = [one for name in names for one in groups.get(name, (name,))]
    for name in wanted:
        if name not in GRAPHS:
            known = (*GRAPHS, *groups)
            raise ValueError(f"dataset {name!r} is unknown{near(name, known)}; expected one of {', '.join(known)}")
    return [GRAPHS[name] for name in dict.fromkeys(wanted)]
