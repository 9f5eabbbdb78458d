"""What ``found.json`` tells of systems that earlier calls trained, maybe on another machine.

A first seed that is told there is not trained again, even where its run folder is not here: further seeds repeat its
recipe and its epochs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOUND = "found.json"


@dataclass(frozen=True, eq=False)
class Told:
    """One system of ``found.json`` whose first seed has a result.

    Args:
        entry: all that the file has of it.
        seeds: those with a result, 0 first.
        minutes: of its first seed, screenings included.
        recipe: the name of the one that was chosen; None for a system that goes on with another one's run, and where
            the file does not tell it.
        epochs: of the first seed; None where the file does not tell them. Before seeds repeated the first one's
            epochs, the mean over seeds was told, which says nothing about any of several.
    """

    entry: Mapping[str, Any]
    seeds: tuple[int, ...]
    minutes: float
    recipe: str | None
    epochs: int | None


def read_json(file: Path, default: Any) -> Any:
    """What an earlier call wrote; ``default`` where there was none.

    Raises:
        ValueError: the file is no JSON.
    """
    if not file.exists():
        return default
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_no_table(file)) from error


def read_told(home: Path, names: Iterable[str]) -> dict[str, Told]:
    """Those of these systems whose first seed has a result in ``home``/found.json.

    Raises:
        ValueError: the file is not as :mod:`~tokengt.experiments.molecules.report` writes it.
    """
    file = home / FOUND
    found = read_json(file, {})
    try:
        return {name: _told(found[name]) for name in names if name in found and 0 in found[name]["seeds"]}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(_no_table(file)) from error


def _told(entry: Mapping[str, Any]) -> Told:
    seeds, recipe, epochs = tuple(map(int, entry["seeds"])), entry["recipe"], entry["epochs"]
    lists = [*entry["values"].values(), entry["validation"]]
    if seeds[0] != 0 or any(len(values) != len(seeds) for values in lists):
        raise ValueError
    is_first = len(seeds) == 1 or "later" in entry
    return Told(
        entry,
        seeds,
        float(entry["minutes"]),
        None if recipe is None else str(recipe["name"]),
        round(epochs) if is_first and epochs else None,
    )


def _no_table(file: Path) -> str:
    return f"{file} is no table of ours; remove it or choose another folder"
