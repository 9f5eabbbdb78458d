"""What the text of one cell means: a number, a missing value, a class, a part of a split.

A cell that means nothing raises a :class:`BadCell`, whose sentence goes to ``rejected.csv``. The modules that worker
processes import, this one among them, do not import torch, which would take each of them seconds to start.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from tokengt.data.manifest import NO_PART, PARTS

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})
TRUTH: Mapping[str, float] = {"true": 1.0, "false": 0.0}
# The codes of the parts of a split, by the words that people write for them.
PART_CODES: Mapping[str, int] = {
    **{part: code for code, part in enumerate(PARTS)},
    **dict.fromkeys(("training", "train_val", "trainval"), PARTS.index("train")),
    **dict.fromkeys(("val", "validation", "dev"), PARTS.index("valid")),
    "testing": PARTS.index("test"),
}
# A row of no part: it is kept and can be predicted, but is never trained on or tested with.
HIDDEN = "hidden"
LARGEST_FLOAT32 = 3.4028234663852886e38
_SHOWN = 60
_BOUND = re.compile(r"([<>\u2264\u2265])=?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)")
# Minus sign, en dash, small and fullwidth hyphen: what word processors make of a hyphen before a digit.
_MINUS_SIGNS = str.maketrans(dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"))


class BadCell(ValueError):
    """A cell that rejects its row; the message says why."""


class CensoredCell(BadCell):
    """A cell that holds a bound of a number, such as ``>3.69``, and no number: a measurement that ran off its scale."""


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """The number a cell holds, NaN if it is missing. Blanks around it, ``+5``, ``1e-3``, ``true`` and ``−5`` are fine.

    Raises:
        BadCell: it is no finite number.
    """
    try:
        value = float(text)
    except ValueError:
        value = _unusual_number(text)
    else:
        # Python reads 1_000 as a thousand, but in a file it is more likely a name.
        if "_" in text:
            raise BadCell(f"is {shown(text)}; expected a number")
    if math.isinf(value):
        raise BadCell(f"is {shown(text)}; expected a finite number")
    return value


def _unusual_number(text: str) -> float:
    word = text.strip().lower()
    if word in MISSING:
        return math.nan
    if word in TRUTH:
        return TRUTH[word]
    try:
        return float(word.translate(_MINUS_SIGNS))
    except ValueError:
        pass
    if _BOUND.fullmatch(word.translate(_MINUS_SIGNS)):
        raise CensoredCell(f"is {shown(text)}; expected a number, and no bound of one")
    comma = "," in word and re.fullmatch(r"[+-]?[\d.,]+([eE][+-]?\d+)?", word)
    hint = "; commas are not read: write 3.14 for 3,14 and 1000 for 1,000" if comma else ""
    raise BadCell(f"is {shown(text)}; expected a number{hint}")


class Label(NamedTuple):
    """What a cell says of a number: the number itself, or a bound below or above it; NaN for what it does not say."""

    value: float
    lower: float = math.nan
    upper: float = math.nan


def number_or_bound(text: str) -> Label:
    """:func:`number`, or of a bound such as ``>3.69`` on which side the number is."""
    try:
        return Label(number(text))
    except CensoredCell:
        found = _BOUND.fullmatch(text.strip().lower().translate(_MINUS_SIGNS))
        assert found is not None
        bound = float(found[2])
        if math.isinf(bound):
            raise BadCell(f"is {shown(text)}; expected a finite number") from None
        return Label(math.nan, lower=bound) if found[1] in ">\u2265" else Label(math.nan, upper=bound)


def weight(text: str) -> float:
    """How much a row counts: 0 or more; a blank is 1."""
    value = number(text)
    if value != value:
        return 1.0
    if value < 0:
        raise BadCell(f"is {shown(text)}; expected a weight of 0 or more")
    return value


def binary(text: str) -> float:
    """0 or 1, NaN for a missing value."""
    value = number(text)
    if value == value and value not in (0.0, 1.0):
        raise BadCell(f"is {shown(text)}; expected 0 or 1")
    return value


def descriptor(text: str) -> float:
    """A number that float32 can hold; it may not be missing, because the model needs every descriptor."""
    value = number(text)
    if value != value:
        raise BadCell(f"is {shown(text)}; expected a number, descriptors may not be missing")
    if abs(value) > LARGEST_FLOAT32:
        raise BadCell(f"is {shown(text)}; expected a number that float32 holds")
    return value


def class_label(text: str) -> str | None:
    """The class a cell names, None for a missing value. Numbers are spelled one way: ``1.0`` and ``01`` are ``1``."""
    word = text.strip()
    if word.lower() in MISSING:
        return None
    if word.lower() in TRUTH:
        return word.lower()
    try:
        return number_label(number(word))
    except BadCell:
        return word


def number_label(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def sorted_classes(labels: set[str]) -> tuple[str, ...]:
    """By value when all are numbers, else by text."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def split_code(text: str) -> int:
    """The place in :data:`~tokengt.data.manifest.PARTS` of the part that a cell names; NO_PART for ``hidden``."""
    word = text.strip().lower()
    if word == HIDDEN:
        return NO_PART
    code = PART_CODES.get(word)
    if code is None:
        raise BadCell(f"is {shown(text)}; expected train, valid, test or {HIDDEN}")
    return code


def shown(text: str) -> str:
    """Text in quotes, cut when it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
