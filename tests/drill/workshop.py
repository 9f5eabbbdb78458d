"""Good things to be hostile to: small runs and stores, made once, and what they answer when nothing is wrong."""

import csv
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.drill.calls import Answer, Command
from tests.drill.graphs import plain_graph
from tests.drill.oracle import Snapshot, snapshot
from tests.drill.truth import MOLECULES

# The smallest model and training that go through all of the code.
TINY = (
    "--preset=small",
    "--set=model.dim=8",
    "--set=model.encoder.num_heads=2",
    "--set=model.encoder.num_layers=1",
    "--set=training.epochs=2",
    "--device=cpu",
)
# Files that a run writes and nobody reads again: copies of a run leave them out where they are not what is tried.
PICTURES = ("curves.png", "parity.png", "confusion.png", "roc.png", "calibration.png")


@dataclass(frozen=True)
class Run:
    """A run, how it was made (less --out) and the columns of its predictions."""

    folder: Path
    arguments: tuple[str, ...]
    columns: tuple[str, ...]
    descriptors: tuple[str, ...]
    source: Path


class Workshop:
    """All of it is in ``home``, and made when it is first asked for."""

    def __init__(self, home: Path, command: Command) -> None:
        self.home, self.command = home, command
        home.mkdir(parents=True, exist_ok=True)

    @cached_property
    def molecules(self) -> Path:
        """A clean table: every molecule twice, with all kinds of labels."""
        rng, path = random.Random(1), self.home / "molecules.csv"
        rows = []
        for place, smiles in enumerate([*MOLECULES, *MOLECULES]):
            atoms = MOLECULES[smiles][0]
            part = ("train", "train", "train", "valid", "test")[place % 5]
            rows.append(
                [smiles, atoms + rng.random(), atoms - rng.random(), place % 2, "abc"[place % 3], atoms / 2, part]
            )
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["smiles", "y", "y2", "b", "c", "d", "part"], *rows])
        return path

    @cached_property
    def graphs(self) -> Path:
        """A clean folder of NetworkX JSON."""
        rng, home = random.Random(2), self.home / "graphs"
        home.mkdir()
        for place in range(30):
            content, _ = plain_graph(rng)
            (home / f"g{place:03}.json").write_text(json.dumps(content))
        return home

    @cached_property
    def single(self) -> Run:
        return self._trained("single", self.molecules, ("--smiles=smiles", "--target=y"), ("predicted_y",))

    @cached_property
    def described(self) -> Run:
        """Two models that are also given a descriptor."""
        options = ("--smiles=smiles", "--target=y", "--descriptors=d", "--ensemble=2")
        return self._trained("described", self.molecules, options, ("predicted_y",), ("d",))

    @cached_property
    def classes(self) -> Run:
        options = ("--smiles=smiles", "--target=c", "--task=multiclass", "--split=column:part")
        return self._trained("classes", self.molecules, options, ("predicted_c",))

    @cached_property
    def on_graphs(self) -> Run:
        return self._trained("on_graphs", self.graphs, ("--target=y",), ("predicted_y",))

    @cached_property
    def store(self) -> Path:
        return self._prepared(
            "store", self.molecules, "--target", "y", "b", "--descriptors", "d", "--split-column", "part"
        )

    @cached_property
    def class_store(self) -> Path:
        return self._prepared("class_store", self.molecules, "--target", "c", "--task", "multiclass")

    @cached_property
    def graph_store(self) -> Path:
        return self._prepared("graph_store", self.graphs, "--target", "y")

    @cached_property
    def known(self) -> Mapping[str, float]:
        """The prediction of the single run for each molecule, asked for one by one."""
        found = {}
        for smiles in MOLECULES:
            (self.home / "one.csv").write_text(f"smiles\n{smiles}\n")
            self._done("predict", self.single.folder, "one.csv", "--out", "one.out.csv")
            with (self.home / "one.out.csv").open(newline="") as file:
                found[smiles] = float(next(csv.DictReader(file))[self.single.columns[0]])
            (self.home / "one.out.csv").unlink()
        return found

    def predicted(self, run: Run) -> bytes:
        """The table that ``predict`` writes for the run's own data."""
        out = self.home / f"{run.folder.name}.predictions.csv"
        if not out.exists():
            self._done("predict", run.folder, run.source, "--out", out)
        return out.read_bytes()

    def evaluated(self, run: Run) -> str:
        out = self.home / f"{run.folder.name}.evaluation.json"
        if not out.exists():
            out.write_text(self._done("evaluate", run.folder, run.source, "--json").stdout)
        return out.read_text()

    def trained_on(self, store: Path, arguments: Sequence[str]) -> Snapshot:
        """What a training on a store writes."""
        out = self.home / f"on_{store.name}"
        if not out.exists():
            self._done("train", store, *arguments, "--out", out)
        return snapshot(out)

    def copy(self, source: Path, target: Path, *, pictures: bool = False) -> Path:
        left_out = () if pictures else PICTURES
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
        return target

    def _trained(
        self,
        name: str,
        source: Path,
        options: tuple[str, ...],
        columns: tuple[str, ...],
        descriptors: tuple[str, ...] = (),
    ) -> Run:
        arguments = ("train", str(source), *options, *TINY)
        self._done(*arguments, "--out", self.home / name)
        return Run(self.home / name, arguments, columns, descriptors, source)

    def _prepared(self, name: str, source: Path, *options: str) -> Path:
        self._done("prepare", source, *options, "--out", self.home / name)
        return self.home / name

    def _done(self, *arguments: str | Path) -> Answer:
        answer = self.command(*arguments, folder=self.home, cpu=120)
        assert answer.done, str(answer)
        return answer
