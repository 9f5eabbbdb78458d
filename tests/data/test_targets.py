"""Targets by name, by pattern, and all of them."""

from pathlib import Path

import pytest

from tests.workflow.small import write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.tables import listed, open_table
from tokengt.data.targets import with_targets

COLUMNS = ("mol_id", "smiles", "NR-AR", "NR-ER", "SR-p53", "T", "code", "set")
ROWS = [
    (1, "CCO", 1, "", 0.5, 20, "A7", "train"),
    (2, "CC", "", ">3", 1, 21, "B2", "test"),
    (3, "C", 0, 2, "", 22, "", ""),
]


def targets(folder: Path, *asked: str) -> tuple[str, ...]:
    table = open_table(write_csv(folder / "tox.csv", COLUMNS, [*ROWS, (4, "CCC", 1, 4, 1, 23, "C1", "train")]))
    recipe = Recipe("smiles", asked, descriptors=("T",), split="set", level="graph")
    return with_targets(recipe, table).targets


def test_all_is_every_column_of_numbers_that_has_no_other_meaning(tmp_path: Path) -> None:
    """A cell such as >3 does not make a column text; ids, descriptors, the split and text are nothing to learn."""
    assert targets(tmp_path, "all") == ("NR-AR", "NR-ER", "SR-p53")


def test_patterns_and_names_come_in_the_order_they_are_given(tmp_path: Path) -> None:
    assert targets(tmp_path, "SR-p53", "NR-*") == ("SR-p53", "NR-AR", "NR-ER")
    assert targets(tmp_path, "?R-*") == ("NR-AR", "NR-ER", "SR-p53")
    assert targets(tmp_path, "nothing") == ("nothing",), "a plain name is looked for later, and its refusal is there"
    with pytest.raises(
        ValueError, match=r"no column that the target 'XX-\*' stands for; .*the columns are mol_id, smiles"
    ):
        targets(tmp_path, "XX-*")
    with pytest.raises(ValueError, match="the targets are all and others too"):
        targets(tmp_path, "all", "NR-AR")


def test_a_column_that_is_called_like_a_pattern_is_meant_by_its_name(tmp_path: Path) -> None:
    table = open_table(write_csv(tmp_path / "a.csv", ("smiles", "all", "y[1]", "y1"), [("C", 1, 2, 3)]))
    assert with_targets(Recipe("smiles", ("all", "y[1]"), level="graph"), table).targets == ("all", "y[1]")


def test_a_sentence_names_twenty_columns() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"c{place}" for place in range(1030)]).endswith("c18, c19 and 1,010 more")
