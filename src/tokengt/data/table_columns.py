"""Columns of a table as features: numbers are scaled, texts become one column per category.

How a column became features is written down (:class:`~tokengt.data.manifest.ColumnFeature`), so that another table is
read alike: scaled by the same numbers, with the same categories. A blank number is the column's mean, a blank or
unknown text is no category.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokengt.data import cells
from tokengt.data.manifest import ColumnFeature
from tokengt.data.tables import Table
from tokengt.sparse import SparseRows

# A column of text with more different values than this, or than half of its rows, names its rows and is no feature.
_MOST_CATEGORIES, _LARGEST_SHARE = 1000, 0.5
# In a column of numbers, texts up to this share are slips of the pen.
_SLIPS = 0.1
# Features of at least this width, of which at most this share is not zero, are kept sparse.
_WIDE, _SPARSE_SHARE = 64, 0.05
# The largest scaled number: beside it, all others would be alike.
_LARGEST = 1e6

Cells = Mapping[str, Sequence[str]]


def described(table: Table, columns: Cells, lines: Sequence[int]) -> tuple[list[ColumnFeature], list[str]]:
    """How each of these columns becomes features, and the names of those that cannot be any.

    Raises:
        ValueError: one sentence: a text in a column of numbers, with its line.
    """
    found, left_out = [], []
    for name, values in columns.items():
        numbers, wrong = _numbers(values)
        present = int(np.isfinite(numbers).sum())
        if len(wrong) <= _SLIPS * (present + len(wrong)):
            if wrong:
                place = wrong[0]
                raise ValueError(
                    f"{table.path}, {table.unit} {lines[place]}: column {name!r} holds {cells.shown(values[place])} "
                    "beside numbers; expected a number, or text in most rows"
                )
            if present:
                found.append(_scaled(name, numbers[np.isfinite(numbers)]))
            else:
                left_out.append(name)
            continue
        words = {word for text in values if (word := cells.class_label(text)) is not None}
        if 1 < len(words) <= min(_MOST_CATEGORIES, _LARGEST_SHARE * len(values)):
            found.append(ColumnFeature(name, categories=cells.sorted_classes(words)))
        else:
            left_out.append(name)
    return found, left_out


def _numbers(values: Sequence[str]) -> tuple[NDArray[np.float64], list[int]]:
    """The numbers of a column, NaN for blanks, and the places of cells that are neither."""
    try:
        # Quick where all cells are plain numbers; what it would read otherwise than one by one is looked at below.
        read = np.array(values, dtype=np.float64)
        if np.isfinite(read).all() and not any("_" in text for text in values):
            return read, []
    except ValueError:
        pass
    read, wrong = np.full(len(values), math.nan), []
    for place, text in enumerate(values):
        try:
            read[place] = cells.number(text)
        except cells.BadCell:
            wrong.append(place)
    return read, wrong


def _scaled(name: str, numbers: NDArray[np.float64]) -> ColumnFeature:
    mean, spread = float(numbers.mean()), float(numbers.std())
    # Zeros and ones stay what they are: a flag means the same in another table.
    if bool(np.isin(numbers, (0.0, 1.0)).all()):
        return ColumnFeature(name)
    return ColumnFeature(name, mean, spread if math.isfinite(spread) and spread > 0 else 1.0)


def encoded(
    table: Table, features: Sequence[ColumnFeature], columns: Cells, lines: Sequence[int]
) -> Tensor | SparseRows | None:
    """The features of all rows, one after another column by column; None where there are none.

    Raises:
        ValueError: one sentence: a cell that is no number in a column of numbers, with its line.
    """
    if not features:
        return None
    rows, places, values, width = [], [], [], 0
    count = len(lines)
    for feature in features:
        own = columns[feature.name]
        if feature.categories is None:
            numbers, wrong = _numbers(own)
            if wrong:
                raise ValueError(
                    f"{table.path}, {table.unit} {lines[wrong[0]]}: column {feature.name!r} holds "
                    f"{cells.shown(own[wrong[0]])}; expected a number"
                )
            scaled = np.nan_to_num((numbers - feature.mean) / feature.scale).clip(-_LARGEST, _LARGEST)
            (at,) = np.nonzero(scaled)
            rows.append(at)
            places.append(np.full(len(at), width))
            values.append(scaled[at])
            width += 1
            continue
        numbered = {word: place for place, word in enumerate(feature.categories)}
        codes = np.array([numbered.get(cells.class_label(text) or "", -1) for text in own], dtype=np.int64)
        (at,) = np.nonzero(codes >= 0)
        rows.append(at)
        places.append(width + codes[at])
        values.append(np.ones(len(at)))
        width += len(feature.categories)
    row, column, value = (torch.from_numpy(np.concatenate(part)) for part in (rows, places, values))
    sparse = SparseRows.from_entries(row.long(), column.long(), value.float(), count, width)
    few = width >= _WIDE and len(sparse.values) <= _SPARSE_SHARE * count * width
    return sparse if few else sparse.dense()
