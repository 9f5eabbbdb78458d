"""Tables from elsewhere: every cell as it was written, every odd row named, every refusal one sentence."""

import csv
import gzip
import io
import lzma
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rdkit import Chem

from tokengt.data import _sdf, tables
from tokengt.data.tables import Row, TableWriter, is_table, open_table


def _write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _rows(path: Path) -> list[Row]:
    return list(open_table(path).rows())


def _cells(path: Path) -> list[tuple[str, ...]]:
    rows = _rows(path)
    assert all(row.problem is None for row in rows)
    return [row.cells for row in rows]


CELLS = [("smiles", 'naïve, "name"', "y"), ("CCO", "two\nlines", "1.5"), ("C#N", "", "-3"), ("[Na+].[Cl-]", "食塩", "")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("suffix", "separator"), [("csv", ","), ("csv", ";"), ("csv", "\t"), ("tsv", "\t"), ("TSV", ",")]
)
def test_dialects(tmp_path, end, mark, suffix, separator):
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC).writerows(CELLS)
    table = open_table(_write(tmp_path, f"a.{suffix}", mark + text.getvalue()))
    assert table.columns == CELLS[0]
    assert (table.unit, table.text_kind, table.text_column) == ("line", "smiles", None)
    first = list(table.rows())
    assert [row.cells for row in first] == CELLS[1:]
    assert [row.line for row in first] == [2, 4, 5]  # the cell of two lines
    assert list(table.rows()) == first


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".GZ", gzip.compress)])
def test_compressed(tmp_path, suffix, pack):
    assert _cells(_write(tmp_path, "a.csv" + suffix, pack(b"smiles,y\nC,1\n"))) == [("C", "1")]
    assert _cells(_write(tmp_path, "a.smi" + suffix, pack(b"C methane\n"))) == [("C", "methane")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)] * 2),
        max_size=5,
    )
)
def test_any_text_comes_back(tmp_path, rows):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    assert _cells(_write(tmp_path, "a.csv", text.getvalue())) == rows


def test_separators_inside_quotes_do_not_count(tmp_path):
    path = _write(tmp_path, "a.csv", 'smiles;"a, b\nc";5" pipe\nC;1;2\n')
    assert open_table(path).columns == ("smiles", "a, b\nc", '5" pipe')
    assert _rows(path) == [Row(3, ("C", "1", "2"))]


def test_blank_lines_and_names(tmp_path):
    path = _write(tmp_path, "a.csv", "\n  \n, smiles ,y,\n\n0,C,1,\n   \n1,O,2,\n")
    assert open_table(path).columns == ("column 1", "smiles", "y", "column 4")
    assert _rows(path) == [Row(5, ("0", "C", "1", "")), Row(7, ("1", "O", "2", ""))]


def test_rows_that_do_not_fit_are_named(tmp_path):
    path = _write(tmp_path, "a.csv", "smiles,y\nC\nC,1,2\nO,2,,\nN,3\nC\0,4\n")
    assert _rows(path) == [
        Row(2, ("C", ""), "the row has 1 cell; expected 2"),
        Row(3, ("C", "1"), "the row has 3 cells; expected 2"),
        Row(4, ("O", "2")),  # commas at the end hold nothing
        Row(5, ("N", "3")),
        Row(6, ("C\0", "4"), "the row holds a NUL byte; expected text"),
    ]


def test_one_column_and_no_rows(tmp_path):
    assert _cells(_write(tmp_path, "a.csv", "SMILES\nC\nO")) == [("C",), ("O",)]
    table = open_table(_write(tmp_path, "b.csv", "smiles,y"))
    assert (table.columns, list(table.rows())) == (("smiles", "y"), [])


def test_huge_cells(tmp_path):
    cell = "C" * 200_000
    assert _cells(_write(tmp_path, "a.csv", f'smiles,y\n"{cell}",1\n')) == [(cell, "1")]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\n\n", "holds only blank lines; expected a header"),
        ("a.csv", "a,b,a\n", "has two columns named 'a'; expected every name once"),
        ("a.csv", b"smiles,y\nC,1\nC,\xe4\n", "line 3 holds bytes that are not UTF-8; save the file as UTF-8"),
        ("a.csv", "smiles,y\nC,1\n".encode("utf-16"), "line 1 holds bytes that are not UTF-8; save the file as UTF-8"),
        ("a.csv", "smiles,y\nC,1\n".encode("utf-16-le"), "holds NUL bytes in its header"),
        ("a.csv", b"y\n\xe2\x82", "line 2 holds bytes that are not UTF-8"),
        ("a.csv.gz", b"smiles,y\n", "cannot be unpacked"),
        ("a.csv.gz", gzip.compress(b"smiles,y\n" * 99, mtime=0)[:-12], "cannot be unpacked"),
        ("a.csv.xz", lzma.compress(b"smiles,y\n" * 99)[:-12], "cannot be unpacked"),
        ("a.csv.xz", b"smiles,y\n", "cannot be unpacked"),
        ("a.xlsx", "x", "is of an unknown kind; expected a name that ends in .csv, .tsv"),
        ("a.parquet.gz", "x", "is of an unknown kind"),
        ("a.parquet", "x", "cannot be read as Parquet"),
        ("a.sdf", "", "is empty"),
        ("a.smi", b"\xff", "line 1 holds bytes"),
    ],
)
def test_refused_files(tmp_path, name, content, sentence):
    path = _write(tmp_path, name, content)
    with pytest.raises(ValueError, match=sentence) as caught:
        list(open_table(path).rows())
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.sdf", "a.csv.gz"])
def test_missing_files_and_folders(tmp_path, name):
    with pytest.raises(ValueError, match="does not exist"):
        open_table(tmp_path / name)
    (tmp_path / name).mkdir()
    assert not is_table(tmp_path / name)
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        open_table(tmp_path / name)


STRAY = 'smiles,y,size\nCCO,1,"5 inch\nCCN,2,x\nCCC,3,"4 inch\nCO,4,"a, ""b""\nc, d"\nC,5,6"\n'
TWICE = '; write a quote that belongs to the text twice ("")'


@pytest.mark.parametrize(
    ("name", "pack"), [("a.csv", bytes), ("a.csv.gz", gzip.compress), ("a.csv.xz", lzma.compress), ("a.tsv", bytes)]
)
def test_a_stray_quote_takes_no_row_with_it(tmp_path, name, pack):
    """The rows after a cell such as "5 inch were lost in it, up to the next quote."""
    text = STRAY.replace(",", "\t") if name.endswith(".tsv") else STRAY
    inner = 'a\t "b"\nc\t d' if name.endswith(".tsv") else 'a, "b"\nc, d'
    rows = _rows(_write(tmp_path, name, pack(text.encode())))
    assert rows == [
        Row(2, ("CCO", "1", '"5 inch'), "a quote stands inside a quoted cell" + TWICE),
        Row(3, ("CCN", "2", "x")),
        Row(4, ("CCC", "3", '"4 inch'), "a quote stands inside a quoted cell" + TWICE),
        Row(5, ("CO", "4", inner)),
        Row(7, ("C", "5", '6"')),
    ]


def test_quotes_that_are_never_closed(tmp_path, monkeypatch):
    path = _write(tmp_path, "a.csv", 'smiles,name\nC,a\nO,"b\nN,c\n')
    assert _rows(path) == [
        Row(2, ("C", "a")),
        Row(3, ("O", '"b'), "it opens a quote that is never closed" + TWICE),
        Row(4, ("N", "c")),
    ]
    with pytest.raises(
        ValueError, match=r"b\.csv line 1, the header, cannot be read as cells: it opens a quote that is"
    ):
        open_table(_write(tmp_path, "b.csv", 'smiles,"name\nC,a\n'))
    monkeypatch.setattr(tables, "_LONGEST_CELL", 1000)
    before = csv.field_size_limit(10)
    try:
        rows = _rows(_write(tmp_path, "c.csv", 'smiles\nC\n"' + "C\n" * 600))
    finally:
        csv.field_size_limit(before)
    assert [row.line for row in rows] == list(range(2, 603))
    assert [row.line for row in rows if row.problem] == [3]
    assert rows[1].problem == "a cell is longer than 1,000 characters; is a quote left open there?"


def test_rows_inside_a_quoted_cell_are_rows(tmp_path):
    """Two stray quotes make a cell that holds whole rows; only what a row looks like tells it from a long note."""
    stray = 'smiles,y,size\nCCO,1,"5 inch\nCCN,2,x\nCCC,3,6"\nC,4,7\n'
    note = 'smiles,y,note\nCCO,1,"of\nC, N, O\nand Cl,2"\nC,4,7\n'
    name = 'name,smiles,y\n"two\nlines",CCO,7\n"a\nb,CCO,c",C,8\n'

    def like(cells: tuple[str, ...]) -> bool:
        place = 1 if "CCO" in cells else 0
        return set(cells[place]) <= set("CNO") and cells[place + 1].isdigit()

    def guarded(content: str) -> list[Row]:
        return list(open_table(_write(tmp_path, "a.csv", content)).guarded(like).rows())

    problem = "it opens a quote that takes in line 3, which is a row of its own" + TWICE
    assert guarded(stray) == [
        Row(2, ("CCO", "1", '"5 inch'), problem),
        Row(3, ("CCN", "2", "x")),
        Row(4, ("CCC", "3", '6"')),
        Row(5, ("C", "4", "7")),
    ]
    assert [row.cells[2] for row in guarded(note)] == ["of\nC, N, O\nand Cl,2", "7"]
    assert [row.cells[0] for row in guarded(name)] == ["two\nlines", "a\nb,CCO,c"]
    # A cell that swallows part of a row leaves too few cells or too many: all lines are rows again.
    short = _rows(_write(tmp_path, "b.csv", 'smiles,y,size\nCCO,"1,5\nCCN,2",x,y\nC,4,7\n'))
    assert [(row.line, bool(row.problem)) for row in short] == [(2, True), (3, True), (4, False)]


def test_what_is_no_regular_file_is_refused_and_nothing_waits(tmp_path):
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.sdf", "a.smi"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} is no regular file; expected one on disk"):
            open_table(tmp_path / name)
    (tmp_path / "null.csv").symlink_to("/dev/null")
    with pytest.raises(ValueError, match=r"null\.csv is no regular file"):
        open_table(tmp_path / "null.csv")
    (tmp_path / "link.csv").symlink_to(_write(tmp_path, "true.csv", "smiles\nC\n"))
    assert _cells(tmp_path / "link.csv") == [("C",)]


def test_names_of_many_columns_are_checked_in_linear_time(tmp_path):
    names = [f"c{place}" for place in range(20_000)]
    path = _write(tmp_path, "a.csv", ",".join(names) + "\n")
    began = time.process_time()
    table = open_table(path)
    assert [table.place(name, "") for name in names] == list(range(20_000))
    assert time.process_time() - began < 2
    with pytest.raises(ValueError, match="two columns named 'c7'"):
        open_table(_write(tmp_path, "b.csv", ",".join([*names, "c7"]) + "\n"))


def test_place_names_the_columns_there_are(tmp_path):
    table = open_table(_write(tmp_path, "a.csv", "SMILES,y\n"))
    assert table.place("y", "--target") == 1
    with pytest.raises(
        ValueError, match=r"a\.csv has no column 'smiles', which --smiles names; the columns are SMILES, y"
    ):
        table.place("smiles", "--smiles")


def test_smiles_lists(tmp_path):
    path = _write(tmp_path, "a.smi", "SMILES Name\nCCO  ethyl alcohol \r\n\nC\nN\tammonia\n\0 x\n")
    assert open_table(path).columns == ("smiles", "name")
    assert _rows(path) == [
        Row(2, ("CCO", "ethyl alcohol")),
        Row(4, ("C", "")),
        Row(5, ("N", "ammonia")),
        Row(6, ("\0", "x"), "the row holds a NUL byte; expected text"),
    ]
    assert _cells(_write(tmp_path, "b.txt", "\nC\nsmiles\n")) == [("C", ""), ("smiles", "")]


def test_parquet(tmp_path):
    values = {
        "smiles": ["C", None, "ü\n"],
        "whole": pyarrow.array([1, None, 2**62], pyarrow.int64()),
        "real": [0.1, float("nan"), -1e-300],
        "flag": [True, False, None],
        "word": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "raw": [b"C\xff", None, b""],
    }
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(values), path, row_group_size=2)
    table = open_table(path)
    assert (table.columns, table.unit) == (tuple(values), "row")
    assert list(table.rows()) == [
        Row(1, ("C", "1", "0.1", "True", "a", "C\ufffd")),
        Row(2, ("", "", "nan", "False", "b", "")),
        Row(3, ("ü\n", str(2**62), "-1e-300", "", "a", "")),
    ]


def test_parquet_values_that_python_cannot_hold(tmp_path):
    """A date after the year 9999, in a column that nobody needs, was an OverflowError."""
    days = pyarrow.array([0, 2**31 - 1, None], pyarrow.date32())
    texts = pyarrow.array(["C", "é", "O"])
    broken = pyarrow.Array.from_buffers(texts.type, 3, [None, texts.buffers()[1], pyarrow.py_buffer(b"C\xff\xfeO")])
    values = {
        "smiles": ["C", "N", "O"],
        "day": days,
        "time": pyarrow.array([0, 2**62, 1], pyarrow.timestamp("us")),
        "nested": pyarrow.StructArray.from_arrays([days], ["day"]),
        "text": broken,
    }
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(values), path)
    first, second, third = _cells(path)
    assert first[:3] == ("C", "1970-01-01", "1970-01-01 00:00:00")
    assert second == (
        "N",
        f"<value out of range: {2**31 - 1}>",
        f"<value out of range: {2**62}>",
        "<struct<day: date32[day]> out of range>",
        "\ufffd\ufffd",
    )
    assert (third[0], third[1], third[4]) == ("O", "", "O")


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"data_page_version": "2.0"}])
def test_flipped_bits_in_pages_with_checksums_are_seen(tmp_path, options):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"smiles": ["C" * (place % 9 + 1) for place in range(100)], "y": [i / 2 for i in range(100)]})
    pyarrow.parquet.write_table(table, path, write_page_checksum=True, **options)
    whole, expected = path.read_bytes(), _rows(path)
    group = pyarrow.parquet.read_metadata(path).row_group(0)
    pages = []
    for column in (group.column(0), group.column(1)):
        start = column.dictionary_page_offset or column.data_page_offset
        pages += range(start, start + column.total_compressed_size)
    random = Random(0)
    seen = 0
    for place in [*pages[:12], *random.sample(pages, 30)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << random.randrange(8)]) + whole[place + 1 :])
        try:
            # A flip in a page's header may change a number that nobody needs.
            assert _rows(path) == expected
        except ValueError as error:
            seen += str(error).startswith(f"{path} cannot be read as Parquet: ")
    assert seen > 25


def test_parquet_names_its_extra_and_its_doubles(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(ValueError, match="has two columns named 'a'"):
        open_table(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'tokengt\[parquet\]'"):
        open_table(path)


def _sd(molecules: list[tuple[str, dict[str, str]]]) -> str:
    text = io.StringIO()
    writer = Chem.SDWriter(text)
    for smiles, fields in molecules:
        molecule = Chem.MolFromSmiles(smiles)
        for name, value in fields.items():
            molecule.SetProp(name, value)
        writer.write(molecule)
    writer.close()
    return text.getvalue()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sdf_as_rdkit_writes_it(tmp_path, end):
    molecules = [("CCO", {"y": "1.5", "a <b> c": "two\nlines"}), ("C", {}), ("c1ccccc1", {"late": "é"})]
    table = open_table(_write(tmp_path, "a.sdf", _sd(molecules).replace("\n", end)))
    assert table.columns == ("molblock", "y", "a <b> c", "late")
    assert (table.unit, table.text_kind, table.text_column) == ("record", "molblock", "molblock")
    rows = list(table.rows())
    assert [row.line for row in rows] == [1, 2, 3]
    assert [row.cells[1:] for row in rows] == [("1.5", "two\nlines", ""), ("", "", ""), ("", "", "é")]
    read = [Chem.MolToSmiles(Chem.MolFromMolBlock(row.cells[0])) for row in rows]
    assert read == [Chem.CanonSmiles(smiles) for smiles, _ in molecules]


def test_sdf_of_other_hands(tmp_path, monkeypatch):
    block = "name\n\n\n  0  0  0  0  0  0            999 V2000\n"
    records = [
        f"{block}M  END\n>  25  <KEY>  (12)\n1\n\n> no name\n2\n\n",
        f"{block}> <KEY>\n3\n",  # no M  END, no blank line
        "$$$$",  # nothing at all
        f"{block}M  END\n",  # no $$$$ at the file's end
    ]
    path = _write(tmp_path, "a.sdf", "$$$$\n".join([*records[:2], "", records[3]]))
    assert [row.cells for row in _rows(path)] == [
        (f"{block}M  END\n", "1"),
        (block, "3"),
        ("\n", ""),
        (f"{block}M  END\n", ""),
    ]
    monkeypatch.setattr(_sdf, "_LONGEST_RECORD", 50)
    with pytest.raises(ValueError, match=r"a\.sdf record 1 does not end"):
        open_table(path)


def test_sdf_records_that_hold_too_much(tmp_path):
    """Without its $$$$ a record took the next molecule with it."""
    one, two = (_sd([(smiles, {"y": y})]) for smiles, y in (("CCO", "1"), ("C", "2")))
    rows = _rows(_write(tmp_path, "a.sdf", one.replace("$$$$\n", "") + two + two))
    assert [row.problem for row in rows] == [
        "the record holds more than one molecule; expected $$$$ after each",
        None,
    ]
    nul = one.replace("> <y>", "> <z>\n\0\n\n> <y>").replace(">  <y>", ">  <z>\n\0\n\n>  <y>")
    (row,) = _rows(_write(tmp_path, "b.sdf", nul))
    assert row.problem == "the row holds a NUL byte; expected text"


def test_a_field_named_like_the_block_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has two columns named 'molblock'"):
        open_table(_write(tmp_path, "a.sdf", _sd([("C", {"molblock": "1"})])))


def test_is_table():
    good = ["a.csv", "a.CSV.GZ", "a.b.tsv.xz", "a.parquet", "a.sdf.gz", "a.smi", "a.txt"]
    bad = ["a.json", "csv", "a.gz", "a.csv.zip", "a.pt", "a.parquet.gz"]
    assert [is_table(Path(name)) for name in good + bad] == [True] * len(good) + [False] * len(bad)


def test_tables_travel_to_workers(tmp_path):
    table = pickle.loads(pickle.dumps(open_table(_write(tmp_path, "a.csv", "smiles\nC\n"))))
    assert [row.cells for row in table.rows()] == [("C",)]


def test_memory_is_bounded_and_torch_left_out(tmp_path):
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("smiles,y\n")
        file.writelines(f"{'C' * 90},{i}\n" for i in range(200_000))
    code = """
import resource, sys, pathlib
from tokengt.data.tables import open_table
table = open_table(pathlib.Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sum(1 for row in table.rows()) == 200_000
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 8_000, (before, after)  # KiB; the text alone is 19,000
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_what_is_written_is_read_back_as_the_same_rows(tmp_path: Path) -> None:
    """A carriage return inside a cell too, which Python's own writer leaves unquoted."""
    rows = [["smiles", "note"], ["CCO", "a\rb"], ["C", 'a\r\n"b", c'], ["CC", ""], ["", "\r"], ["O", 'd "e"\nf']]
    file = tmp_path / "a.csv"
    with file.open("w", newline="") as text:
        TableWriter(text).writerows(rows)
    with file.open(newline="") as text:
        assert list(csv.reader(text)) == rows
    assert [list(row.cells) for row in open_table(file).rows()] == rows[1:]
