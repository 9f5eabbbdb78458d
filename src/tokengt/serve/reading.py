"""Molecules of a request to arrays: what the processes that read them are asked to do. It does not import torch.

Each function is called in a process of its own (:mod:`tokengt.serve.readers`), so that a text that RDKit reads for
minutes, or that ends it, costs its own request and nothing else. Rows are read by what ``tokengt predict`` calls: a
list of SMILES is a table of one column.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tokengt.data.shards import Column, ShardRecipe, ShownShard, convert_shown, looks_like_row, visible_columns
from tokengt.data.tables import Row, open_table
from tokengt.interop.molecules import read_molecule
from tokengt.serve.needs import Needs
from tokengt.serve.problems import Problem

SMILES = "smiles"


class ReadRows(NamedTuple):
    """Rows that were read: the columns to give back, and which of them is the SMILES, by its place."""

    head: tuple[str, ...]
    text: int
    shard: ShownShard


def read_molecules(smiles: tuple[str, ...], descriptors: tuple[tuple[float, ...], ...], needs: Needs) -> ReadRows:
    """SMILES of a request, with their descriptors; every one comes back as it is, in the column ``smiles``."""
    assert needs.policy is not None
    columns = tuple(Column(name, place) for place, name in enumerate(needs.descriptors, 1))
    recipe = ShardRecipe(Column(SMILES, 0), "smiles", needs.policy, None, (), columns, None)
    numbers = descriptors or ((),) * len(smiles)
    # repr gives every digit of a number, so that its text means the same number.
    cells = [(text, *map(repr, row)) for text, row in zip(smiles, numbers, strict=True)]
    shown = convert_shown([Row(line, row) for line, row in enumerate(cells, 1)], recipe)
    return ReadRows((SMILES, *needs.descriptors), 0, shown)


def read_table(body: bytes, ending: str, needs: Needs, wanted: str | None, most: int) -> ReadRows:
    """The rows of a table that came as the body of a request.

    ``ending`` says what kind of file it would be, ``wanted`` which column holds SMILES.

    Raises:
        Problem: it cannot be read as a table, has no such column, or more rows than ``most``.
    """
    assert needs.policy is not None
    with tempfile.TemporaryDirectory(prefix="tokengt-serve-") as folder:
        path = Path(folder) / f"table{ending}"
        path.write_bytes(body)
        try:
            table = open_table(path)
            # Lines are counted before any is read: quotes that are left open make reading slow.
            rows_at_most = table.survey().most_rows
            if rows_at_most > most:
                expected = f"at most {most:,} (the limit rows); longer files are for tokengt predict"
                raise Problem(413, f"the table has {rows_at_most:,} lines; expected {expected}", "body", expected)
            recipe = ShardRecipe.to_predict(table, needs.policy, needs.descriptors, needs.text_column, wanted)
            head, blocks = visible_columns(table)
            guarded = table.guarded(partial(looks_like_row, recipe=recipe))
            shown = convert_shown(list(guarded.rows()), recipe, blocks)
        except ValueError as error:
            # The name of our own file means nothing to the client.
            said = str(error).replace(str(path), "the table")
            raise Problem(422, said, "body", "a table that tokengt predict would read") from None
    return ReadRows(head, recipe.text.place, shown)


def check_molecule(smiles: str, needs: Needs) -> None:
    """Refuse a molecule that cannot be read.

    Raises:
        ValueError: one sentence that says why.
    """
    assert needs.policy is not None
    read_molecule(smiles, needs.policy)


def warm() -> None:
    """Imports what the first request would otherwise wait for."""
    read_molecule("C")
    from rdkit.Chem import rdDepictor  # noqa: F401
    from rdkit.Chem.Draw import rdMolDraw2D  # noqa: F401
