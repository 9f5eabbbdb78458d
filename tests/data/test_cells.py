import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.data import cells
from tokengt.data.manifest import NO_PART


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        (" 5 ", 5.0),
        ("\u00a05\t", 5.0),
        ("+5", 5.0),
        ("-0.25", -0.25),
        ("1e-3", 0.001),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("True", 1.0),
        ("false", 0.0),
        ("\u22120.5", -0.5),
        (" \u20132e\u22123", -0.002),
    ],
)
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert cells.number(text) == value


@pytest.mark.parametrize("text", ["", "  ", "nan", "NaN", "NA", "n/a", "Null", "none", " None "])
def test_gaps(text: str) -> None:
    assert math.isnan(cells.number(text))
    assert cells.is_missing(text)
    assert cells.class_label(text) is None
    with pytest.raises(cells.BadCell, match="may not be missing"):
        cells.descriptor(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("high", "is 'high'; expected a number"),
        ("3,14", "is '3,14'; expected a number; commas are not read: write 3.14 for 3,14 and 1000 for 1,000"),
        ("1,234.5", "is '1,234.5'; expected a number; commas are not read: write 3.14 for 3,14 and 1000 for 1,000"),
        (">5", "is '>5'; expected a number, and no bound of one"),
        ("1_000", "is '1_000'; expected a number"),
        ("inf", "is 'inf'; expected a finite number"),
        ("-Infinity", "is '-Infinity'; expected a finite number"),
        ("1e999", "is '1e999'; expected a finite number"),
        ("0x10", "is '0x10'; expected a number"),
        ("x" * 200, f"is '{'x' * 60}...'; expected a number"),
    ],
)
def test_what_is_no_number_says_so(text: str, reason: str) -> None:
    with pytest.raises(cells.BadCell) as bad:
        cells.number(text)
    assert str(bad.value) == reason


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", " ", "\t"]))
def test_every_finite_number_comes_back(value: float, blank: str) -> None:
    assert cells.number(f"{blank}{value!r}{blank}") == value


def test_binary_takes_zero_and_one_only() -> None:
    assert [cells.binary(text) for text in ("0", "1.0", "true")] == [0.0, 1.0, 1.0]
    assert math.isnan(cells.binary(""))
    with pytest.raises(cells.BadCell, match="is '2'; expected 0 or 1"):
        cells.binary("2")


def test_descriptors_fit_float32() -> None:
    assert cells.descriptor("3e38") == 3e38
    with pytest.raises(cells.BadCell, match="float32"):
        cells.descriptor("4e38")


def test_classes_that_are_numbers_are_spelled_one_way() -> None:
    assert [cells.class_label(text) for text in ("1", "1.0", " 01", "1.5", "TRUE", "inf", "Red ")] == [
        "1",
        "1",
        "1",
        "1.5",
        "true",
        "inf",
        "Red",
    ]
    assert cells.sorted_classes({"10", "9", "-1"}) == ("-1", "9", "10")
    assert cells.sorted_classes({"10", "9", "b", "a"}) == ("10", "9", "a", "b")


def test_split_words() -> None:
    words = ("train", "Training", "train_val", "Valid", "val", " validation", "DEV", "test ", "Testing")
    assert [cells.split_code(word) for word in words] == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert cells.split_code(" Hidden") == NO_PART
    with pytest.raises(cells.BadCell, match="is 'fold1'; expected train, valid, test or hidden"):
        cells.split_code("fold1")


@pytest.mark.parametrize("text", [">3.69", "< 5", ">=1e-3", "\u22645", " >\u22122.5 ", ">.5"])
def test_bounds_are_told_from_other_text(text: str) -> None:
    with pytest.raises(cells.CensoredCell, match="expected a number, and no bound of one"):
        cells.number(text)


@pytest.mark.parametrize("text", [">", ">high", "<5>", "5<", "->5", "~5"])
def test_text_with_such_a_sign_is_no_bound(text: str) -> None:
    with pytest.raises(cells.BadCell) as bad:
        cells.number(text)
    assert type(bad.value) is cells.BadCell
