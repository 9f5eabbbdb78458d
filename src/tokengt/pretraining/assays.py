"""Measurements of thousands of assays in a few bytes: per assay in steps, per molecule in a fixed number of slots.

A value is told in steps of an eighth of its assay's standard deviation, from the mean: ``step = round(8 (x - mean) /
deviation) + 32``, cut off at 0 and 63. Its code is ``step + 64 relation``, so that one byte says what was measured and
whether it is a bound. Most molecules have one or two labels and a few have hundreds; a training step of fixed shape has
room for :data:`SLOTS` labels of each molecule, and where there are more it takes those of the rarest assays.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.pretraining.quantise import MISSING
from tokengt.pretraining.sources import Measurements

SLOTS = 32
# Columns of one slot: the assay's number in two bytes, whether the molecule is active, the code of the value.
FIELDS = 4
CENTRE, PER_DEVIATION, LEVELS = 32, 8, 64


def slots_of(
    lists: Sequence[Measurements], kept: Sequence[NDArray[np.int64]]
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """The labels of the molecules that are kept, sorted by molecule, as arrays of bytes; and the assays' names."""
    names: list[str] = []
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in ("rows", "assays", "active", "values", "relations")}
    first = 0
    for measurements, places in zip(lists, kept, strict=True):
        here = measurements.of_rows(places)
        for name, arrays in found.items():
            shift = {"rows": first, "assays": len(names)}.get(name, 0)
            arrays.append(getattr(here, name) + shift if shift else getattr(here, name))
        names += measurements.names
        first += len(places)
    if len(names) > 65_535:
        raise ValueError(f"there are {len(names):,} assays; expected at most 65,535")
    rows, assays, active, values, relations = (np.concatenate(arrays) for arrays in found.values())
    chosen = first_slots(rows, assays)
    rows, assays = rows[chosen], assays[chosen]
    codes = value_codes(assays, values[chosen], relations[chosen], len(names))
    return {
        "slot_counts": np.bincount(rows, minlength=first).astype(np.uint8),
        "slot_assay_low": (assays & 255).astype(np.uint8),
        "slot_assay_high": (assays >> 8).astype(np.uint8),
        "slot_active": active[chosen].astype(np.uint8),
        "slot_value": codes,
    }, tuple(names)


def first_slots(rows: NDArray[np.int64], assays: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which labels have a slot, by molecule; of too many those of the assays with the fewest labels."""
    common = np.bincount(assays)[assays] if len(assays) else assays
    order = np.lexsort((assays, common, rows))
    starts = np.searchsorted(rows[order], rows[order])
    chosen: NDArray[np.int64] = order[np.arange(len(order)) - starts < SLOTS]
    return chosen


def value_codes(
    assays: NDArray[np.int64], values: NDArray[np.float64], relations: NDArray[np.uint8], count: int
) -> NDArray[np.uint8]:
    """One byte per measurement; 255 where there is no value, or where all values of an assay are equal."""
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    labels = np.maximum(np.bincount(assays, known, minlength=count), 1)
    mean = np.bincount(assays, filled, minlength=count) / labels
    squares = np.bincount(assays, np.where(known, (filled - mean[assays]) ** 2, 0.0), minlength=count)
    deviation = np.sqrt(squares / labels)
    told = known & (deviation[assays] > 0)
    steps = np.rint(PER_DEVIATION * (filled - mean[assays]) / np.where(told, deviation[assays], 1.0)) + CENTRE
    codes = np.clip(steps, 0, LEVELS - 1) + LEVELS * relations.astype(np.float64)
    out: NDArray[np.uint8] = np.where(told, codes, MISSING).astype(np.uint8)
    return out


def slot_table(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """[molecules, SLOTS * FIELDS] the labels of every molecule, ``MISSING`` in slots that none takes."""
    counts = arrays["slot_counts"].astype(np.int64)
    table = np.full((len(counts), SLOTS, FIELDS), MISSING, dtype=np.uint8)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    names = ("slot_assay_low", "slot_assay_high", "slot_active", "slot_value")
    for field, name in enumerate(names):
        table[rows, places, field] = arrays[name]
    return table.reshape(len(counts), -1)
