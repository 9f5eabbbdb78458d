"""Which columns are the targets: by name, by a pattern such as ``NR-*``, or all that hold numbers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from tokengt.data import cells
from tokengt.data.manifest import Recipe
from tokengt.data.tables import Table, listed

ALL = "all"
# Numbers under such a name tell rows apart, and are nothing to learn.
_ID_NAME = re.compile(r"(.*[ _-])?(id|ids|index|idx|row|cid|unnamed: \d+|column \d+)", re.IGNORECASE)


def with_targets(recipe: Recipe, table: Table) -> Recipe:
    """The recipe with ``all`` and patterns replaced by columns of the table; the columns of SMILES must be known.

    ``all`` are the columns most of whose cells are numbers, but for descriptors and columns that are named like ids.
    A column that is itself called so is meant by its name.

    Raises:
        ValueError: one sentence: no column is meant.
    """
    others = {recipe.smiles, table.text_column, recipe.split, *recipe.descriptors}
    free = [name for name in table.columns if name not in others]
    if ALL in recipe.targets and ALL not in table.columns and len(recipe.targets) > 1:
        raise ValueError(f"{table.path}: the targets are {ALL} and others too; expected one of the two")
    where = f"{table.path}: the columns are {listed(table.columns)}"
    return replace(recipe, targets=expanded(recipe.targets, free, lambda: numeric_columns(table, free), where))


def expanded(
    asked: Sequence[str], names: Sequence[str], numeric: Callable[[], Sequence[str]], where: str
) -> tuple[str, ...]:
    """Names as they are; patterns and ``all`` as the names that they stand for, each once, in the order of the file."""
    chosen: dict[str, None] = {}
    for name in asked:
        if name in names or not (name == ALL or set(name) & set("*?[")):
            found: Sequence[str] = [name]
        else:
            found = numeric() if name == ALL else [known for known in names if fnmatchcase(known, name)]
        if not found:
            what = "no column of numbers to learn" if name == ALL else f"no column that the target {name!r} stands for"
            raise ValueError(f"there is {what}; {where}")
        chosen |= dict.fromkeys(found)
    return tuple(chosen)


def numeric_columns(table: Table, names: Sequence[str]) -> list[str]:
    """The columns among ``names`` most of whose filled cells are numbers."""
    places = {name: table.columns.index(name) for name in names if not _ID_NAME.fullmatch(name)}
    surplus = dict.fromkeys(places, 0)
    for row in table.rows():
        for name, place in places.items():
            text = row.cells[place]
            if not cells.is_missing(text):
                surplus[name] += 1 if _is_number(text) else -1
    return [name for name, count in surplus.items() if count > 0]


def _is_number(text: str) -> bool:
    try:
        cells.number(text)
    except cells.BadCell:
        return False
    return True
