from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.data.manifest import Recipe
from tokengt.data.merge import merged
from tokengt.data.shards import ShardArrays, ShardFile, ShardRecipe, convert_shard
from tokengt.data.tables import Row, open_table
from tokengt.data.tensorfile import Array

TEXTS = ["CO", "C", "not a molecule", "c1ccccc1", "[Na+].[Cl-]", "C" * 300, "N#N"]


def plan(tmp_path: Path, header: str, **options: object) -> ShardRecipe:
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n")
    return ShardRecipe.of(Recipe(smiles="smiles", **options), open_table(path))  # type: ignore[arg-type]


def rows(*cells: tuple[str, ...]) -> list[Row]:
    """Rows as they stand in a file below its header."""
    return [Row(line, row) for line, row in enumerate(cells, 2)]


def test_a_shard_by_hand(tmp_path: Path) -> None:
    """Methanol, a row without molecule, and water with a gap for a label."""
    header = plan(tmp_path, "smiles,y,fold,mass", targets=("y",), descriptors=("mass",), split="fold")
    shard = convert_shard(rows(("CO", "1.5", "train", "32"), ("?", "2", "test", "1"), ("O", "", "val", "18.5")), header)
    assert shard.arrays["node_counts"].tolist() == [2, 1]
    assert shard.arrays["edge_counts"].tolist() == [2, 0]
    assert shard.arrays["edge_index"].tolist() == [[0, 1], [1, 0]]
    assert shard.arrays["node_features"][:, 0].tolist() == [5, 7, 7]
    assert shard.arrays["lines"].tolist() == [2, 4]
    assert shard.arrays["targets"].tolist()[0] == [1.5]
    assert np.isnan(shard.arrays["targets"][1]).all()
    assert shard.arrays["graph_features"].tolist() == [[32.0], [18.5]]
    assert shard.arrays["split"].tolist() == [0, 1]
    assert shard.arrays["texts"].tobytes() == b"COO"
    assert shard.arrays["text_counts"].tolist() == [2, 1]
    (rejected,) = shard.rejected
    assert rejected.line == 3
    assert rejected.reason.startswith("the SMILES cannot be read")
    assert rejected.cells == ("?", "2", "test", "1")


def test_reasons_name_the_column_and_keep_the_order_of_the_rows(tmp_path: Path) -> None:
    header = plan(tmp_path, "smiles,y,fold,mass", targets=("y",), descriptors=("mass",), split="fold", task="binary")
    shard = convert_shard(
        [
            *rows(("C", "2", "train", "1"), ("(", "1", "train", "1"), ("C", "1", "", "1"), ("C", "1", "test", "heavy")),
            Row(6, ("C", "1", "", ""), "the row has 2 cells; expected 4"),
        ],
        header,
    )
    assert [row.line for row in shard.rejected] == [2, 3, 4, 5, 6]
    reasons = [row.reason for row in shard.rejected]
    assert reasons[0] == "target 'y' is '2'; expected 0 or 1"
    assert reasons[2] == "split column 'fold' is ''; expected train, valid, test or hidden"
    assert reasons[3] == "descriptor 'mass' is 'heavy'; expected a number"
    assert reasons[4] == "the row has 2 cells; expected 4"
    assert shard.arrays["node_features"].shape == (0, 9)


def test_classes_come_from_rows_that_are_kept(tmp_path: Path) -> None:
    header = plan(tmp_path, "smiles,y", targets=("y",), task="multiclass")
    shard = convert_shard(rows(("C", "low"), ("C", "high"), ("?", "odd"), ("C", "NA")), header)
    assert shard.classes == ("high", "low")
    assert shard.arrays["targets"][:2].tolist() == [[1.0], [0.0]]
    assert np.isnan(shard.arrays["targets"][2]).all()


def save(shards: list[ShardArrays], folder: Path) -> dict[str, Array]:
    """All tensors of the store that the shards make."""
    files = []
    for number, shard in enumerate(shards):
        path = folder / f"{number}"
        path.write_bytes(shard.to_bytes())
        files.append(ShardFile(path))
    found = {}
    for name, stream in merged(files).streams.items():
        flat = np.concatenate([np.asarray(piece, dtype=stream.dtype).ravel() for piece in stream.pieces()])
        found[name] = flat.reshape(stream.shape)
    return found


@given(cut=st.integers(0, len(TEXTS)), second=st.integers(0, len(TEXTS)))
def test_where_shards_are_cut_does_not_matter(tmp_path_factory: pytest.TempPathFactory, cut: int, second: int) -> None:
    """Three shards, some perhaps empty or all rejected, merge to what one shard of all rows is."""
    folder = tmp_path_factory.mktemp("cut")
    header = plan(folder, "smiles,y", targets=("y",), task="multiclass")
    every = rows(*((text, str(10 - place)) for place, text in enumerate(TEXTS)))
    first, last = sorted((cut, second))
    pieces = [convert_shard(part, header) for part in (every[:first], every[first:last], every[last:])]
    apart, together = save(pieces, folder), save([convert_shard(every, header)], folder)
    assert apart.keys() == together.keys()
    for name, array in together.items():
        assert apart[name].dtype == array.dtype, name
        assert np.array_equal(apart[name], array), name
    assert apart["edge_index"].dtype == np.int16  # the chain of 300 atoms
    assert apart["targets"].ravel().tolist() == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def test_mol_blocks_become_smiles(tmp_path: Path) -> None:
    from rdkit import Chem

    path = tmp_path / "two.sdf"
    with Chem.SDWriter(str(path)) as writer:
        for smiles, value in (("OC", 1), ("CC=O", 2)):
            molecule = Chem.MolFromSmiles(smiles)
            molecule.SetProp("y", str(value))
            writer.write(molecule)
    table = open_table(path)
    shard = convert_shard(list(table.rows()), ShardRecipe.of(Recipe(targets=("y",)), table))
    assert shard.arrays["texts"].tobytes() == b"COCC=O"
    assert shard.arrays["targets"].tolist() == [[1.0], [2.0]]
    assert shard.arrays["lines"].tolist() == [1, 2]
    assert shard.rejected == ()
