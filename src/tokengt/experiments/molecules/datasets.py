"""What is learned of each data set, and how its errors are told."""

from dataclasses import dataclass, replace
from pathlib import Path

from tokengt.data.manifest import Recipe
from tokengt.data.splitting import GIVEN, SplitRequest
from tokengt.data.store import Store
from tokengt.experiments.molecules.systems import Size
from tokengt.interop.molecules import MoleculePolicy
from tokengt.workflow.inputs import check_wishes, open_data

HARTREE = 27.2114
# The paper's models read atoms and their chirality as OGB does.
_AS_OGB = MoleculePolicy(atoms="spelled")


@dataclass(frozen=True)
class Benchmark:
    """One data set of the table.

    Args:
        name: as ``tokengt datasets`` lists it.
        targets: columns to learn; none for all.
        metrics: those of the table; the first one, on the validation part, chooses epochs and recipes.
        size: how large its models are.
        batch_size: graphs per step, unless a recipe says otherwise.
        factor: what a label is multiplied by to be in ``unit``.
        unit: of labels and errors; empty for none.
        split: the part that is told. The test part of PCQM4Mv2 is hidden: the paper tells the validation part.
        loss: what training makes small; None for the usual loss of the task.
    """

    name: str
    targets: tuple[str, ...]
    metrics: tuple[str, ...]
    size: Size
    batch_size: int
    factor: float = 1.0
    unit: str = ""
    split: str = "test"
    loss: str | None = "mae"

    def settings(self) -> dict[str, object]:
        """Settings of every training."""
        loss = {} if self.loss is None else {"training.loss": self.loss}
        return {"training.batch_size": self.batch_size, "training.metric": self.metrics[0], **loss}

    def opened(self, data: Path | None, home: Path, quiet: bool = False) -> Store:
        """The data set by its name, or the store ``data`` that was prepared from it; labels in ``unit``.

        Raises:
            ValueError: there is no such store, or it lacks the target or the official split.
        """
        source, recipe = (
            data or self.name,
            Recipe(targets=self.targets, policy=_AS_OGB if data is None else Recipe().policy),
        )
        check_wishes(source, recipe, SplitRequest(GIVEN))
        store = open_data(source, recipe, home, quiet=quiet)
        if store.split is None:
            raise ValueError(f"{source} has no split of its own; make it by tokengt prepare {self.name} --out STORE")
        return replace(store, targets=store.targets * self.factor)


BENCHMARKS: dict[str, Benchmark] = {
    each.name: each
    for each in (
        Benchmark("qm9", ("gap",), ("mae", "rmse"), "medium", 256, HARTREE, "eV"),
        Benchmark("zinc12k", ("y",), ("mae",), "small", 64),
        Benchmark("pcqm4mv2", ("homolumogap",), ("mae",), "paper", 1024, unit="eV", split="valid"),
        Benchmark("peptides-func", (), ("average_precision",), "small", 64, loss=None),
    )
}
