"""Hostile tables of molecules, each with the truth about it: CSV and TSV, SMI, SDF, Parquet, plain and compressed."""

import gzip
import lzma
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tests.drill.truth import MOLECULES, Row, cell

COLUMNS = ("smiles", "y", "y2", "d", "b", "c", "part", "note")
# "read": the store must hold exactly what the rows mean. "refused": one sentence. "doubtful": either, with no row lost.
Verdict = Literal["read", "refused", "doubtful"]


@dataclass(frozen=True)
class Table:
    """A file that was written and the truth about it. ``columns`` as its header has them; ``mentions``: a word that a
    refusal must have in it, such as the number of the bad line."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    verdict: Verdict = "read"
    mentions: str = ""
    # Whether cells come back exactly as they were written.
    exact: bool = True
    what: str = ""


@dataclass(frozen=True)
class Style:
    """How a table of text is written."""

    separator: str = ","
    end: str = "\n"
    mark: bool = False
    packing: str = ""
    quote_all: bool = False
    last_end: bool = True
    blank_lines: float = 0.0


@dataclass
class _Text:
    """Text with the number of the line that comes next."""

    style: Style
    text: list[str] = field(default_factory=list)
    line: int = 1

    def add(self, record: str) -> int:
        begun, whole = self.line, record + self.style.end
        self.text.append(whole)
        self.line += line_ends(whole)
        return begun


def line_ends(text: str) -> int:
    return text.replace("\r\n", "\n").replace("\r", "\n").count("\n")


def table(rng: random.Random, folder: Path) -> Table:
    """A random hostile table."""
    kinds: tuple[tuple[int, Callable[[random.Random, Path], Table]], ...] = (
        (12, delimited),
        (6, spoiled),
        (2, smiles_list),
        (3, sdf),
        (5, parquet),
    )
    (make,) = rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
    return make(rng, folder)


def a_style(rng: random.Random) -> Style:
    return Style(
        separator=rng.choice(",,,;\t"),
        end=rng.choice(("\n", "\n", "\r\n", "\r")),
        mark=rng.random() < 0.2,
        packing=rng.choice(("", "", "", ".gz", ".xz")),
        quote_all=rng.random() < 0.2,
        last_end=rng.random() < 0.8,
        blank_lines=rng.choice((0.0, 0.0, 0.2)),
    )


def delimited(rng: random.Random, folder: Path) -> Table:
    """A table that can be read, whatever its rows are like."""
    style, hostile = a_style(rng), rng.choice((0.0, 0.05, 0.1))
    columns = _columns(rng)
    text = _Text(style)
    while rng.random() < style.blank_lines:
        text.add("")
    text.add(_joined([*columns], style))
    rows = []
    for _ in range(rng.choice((2, 5, 12, 40))):
        if rng.random() < style.blank_lines:
            text.add("")
        rows.append(_add_row(rng, text, columns, hostile))
    return Table(_written(folder / "t", text, style, rng), tuple(columns), tuple(rows))


def _columns(rng: random.Random) -> list[str]:
    columns = list(COLUMNS)
    rng.shuffle(columns)
    extra = rng.choice((0, 0, 0, 0, 1, 3, 300))
    return columns + [f"extra {place}" for place in range(extra)]


def _add_row(rng: random.Random, text: _Text, columns: Sequence[str], hostile: float) -> Row:
    cells = [cell(rng, name, hostile) for name in columns]
    written, broken = list(cells), False
    chance = rng.random()
    if chance < hostile / 3:
        written, broken = written[: rng.randrange(1, len(written))], True
        if not any(written):
            written[0] = "x"
    elif chance < 2 * hostile / 3:
        written, broken = [*written, "too", "many"], True
    elif chance < hostile:
        place = rng.randrange(len(written))
        written[place] += "\0"
        broken = True
    elif chance < hostile + 0.05:
        written += ["", ""]
    if broken:
        # A row of a wrong shape over several lines may as well be several rows: nobody can tell.
        written = [" ".join(text.split()) if set(text) & set("\r\n") else text for text in written]
    if chance > 0.99:
        place = columns.index("note")
        written[place] = "long " * 40_000
    line = text.add(_joined(written, text.style))
    kept = (written + [""] * len(columns))[: len(columns)]
    return Row(line, dict(zip(columns, kept, strict=True)), broken)


def _joined(cells: Sequence[str], style: Style) -> str:
    return style.separator.join(_quoted(text, style) for text in cells)


def _quoted(text: str, style: Style) -> str:
    special = any(mark in text for mark in (style.separator, '"', "\n", "\r", ",", ";", "\t"))
    return '"' + text.replace('"', '""') + '"' if special or style.quote_all else text


def _written(stem: Path, text: _Text, style: Style, rng: random.Random) -> Path:
    whole = "".join(text.text)
    if not style.last_end:
        whole = whole[: -len(style.end)]
    kind = ".tsv" if style.separator == "\t" and rng.random() < 0.7 else ".csv"
    path = stem.with_name(stem.name + kind + style.packing)
    path.write_bytes(packed(("\ufeff" if style.mark else "").encode() + whole.encode(), style.packing))
    return path


def packed(content: bytes, packing: str) -> bytes:
    if packing == ".gz":
        return gzip.compress(content, mtime=0)
    return lzma.compress(content) if packing == ".xz" else content


# ---- tables with one thing wrong with the whole file


def spoiled(rng: random.Random, folder: Path) -> Table:
    return rng.choice(SPOILERS)(rng, folder)


def _plain(rng: random.Random, folder: Path, rows: int = 6, **style: Any) -> tuple[Table, Style]:
    chosen = Style(**style)
    text = _Text(chosen)
    text.add(_joined(COLUMNS, chosen))
    made = tuple(_add_row(rng, text, COLUMNS, 0.0) for _ in range(rows))
    return Table(_written(folder / "t", text, chosen, rng), COLUMNS, made), chosen


def _no_bytes(rng: random.Random, folder: Path) -> Table:
    path = folder / rng.choice(("t.csv", "t.tsv", "t.csv.gz", "t.smi", "t.sdf", "t.parquet", "t.csv.xz"))
    path.write_bytes(b"")
    return Table(path, COLUMNS, verdict="refused", what="an empty file")


def _only_blanks(rng: random.Random, folder: Path) -> Table:
    path = folder / "t.csv"
    path.write_bytes(rng.choice((b"\n\n\n", b"   \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n")))
    return Table(path, COLUMNS, verdict="refused", what="only blanks")


def _only_header(rng: random.Random, folder: Path) -> Table:
    path = folder / "t.csv"
    path.write_text(",".join(COLUMNS) + rng.choice(("", "\n", "\r\n\r\n")))
    return Table(path, COLUMNS, verdict="refused", what="a header and no row")


def _same_names(rng: random.Random, folder: Path) -> Table:
    path = folder / "t.csv"
    path.write_text(rng.choice(("smiles,y,y", "smiles,smiles,y", "smiles,y, y")) + "\nCCO,1,2\nCCN,2,3\n")
    return Table(path, COLUMNS, verdict="refused", what="two columns of one name")


def _nameless(rng: random.Random, folder: Path) -> Table:
    path = folder / "t.csv"
    path.write_text("smiles,y,,\nCCO,1,a,b\nCCN,2,c,d\n")
    names = ("smiles", "y", "column 3", "column 4")
    rows = (
        Row(2, dict(zip(names, ("CCO", "1", "a", "b"), strict=True))),
        Row(3, dict(zip(names, ("CCN", "2", "c", "d"), strict=True))),
    )
    # "1" and "2" are cells that the truth knows as " 2 " and the like; the label column is not asked for here.
    return Table(path, names, rows, what="columns without a name")


def _not_utf8(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder)
    lines = made.path.read_bytes().split(b"\n")
    place = rng.randrange(1, len(lines) - 1)
    lines[place] = lines[place] + rng.choice((b"\xff", b"\xb5g", b"\xc3", b"\xed\xa0\x80"))
    made.path.write_bytes(b"\n".join(lines))
    return replace(made, verdict="refused", mentions="UTF-8", what="bytes that are not UTF-8")


def _utf16(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder)
    made.path.write_bytes(
        made.path.read_bytes().decode().encode(rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32")))
    )
    return replace(made, verdict="refused", what="UTF-16")


def _torn(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder, rows=40, packing=rng.choice((".gz", ".xz")))
    content = made.path.read_bytes()
    made.path.write_bytes(content[: rng.randrange(1, len(content) - 1)])
    return replace(made, verdict="refused", what="a torn archive")


def _flipped_archive(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder, rows=40, packing=rng.choice((".gz", ".xz")))
    made.path.write_bytes(flipped(made.path.read_bytes(), rng))
    return replace(made, verdict="doubtful", what="a flipped bit in an archive")


def _not_an_archive(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder)
    path = folder / f"u.csv{rng.choice(('.gz', '.xz'))}"
    made.path.rename(path)
    return replace(made, path=path, verdict="refused", what="no archive under that name")


def _two_archives(rng: random.Random, folder: Path) -> Table:
    made, _ = _plain(rng, folder)
    content = made.path.read_bytes()
    middle = rng.randrange(1, len(content))
    path = folder / "u.csv.gz"
    path.write_bytes(gzip.compress(content[:middle]) + gzip.compress(content[middle:]))
    return replace(made, path=path, what="two archives end to end")


def _open_quote(rng: random.Random, folder: Path) -> Table:
    """A quote that is opened and not closed in its cell: rows up to the next quote must not vanish."""
    path = folder / "t.csv"
    names = ("smiles", "y", "note")
    rows, lines = [], [",".join(names)]
    count = rng.randrange(6, 30)
    strays = sorted(rng.sample(range(1, count), rng.choice((1, 2, 2, 3))))
    for place in range(count):
        smiles, y = rng.choice(tuple(MOLECULES)), rng.choice(("1.5", "7", "0"))
        note = '"5 inch' if place in strays else rng.choice(("x", "fine", '"quoted, well"'))
        lines.append(f"{smiles},{y},{note}")
        cells = dict(zip(names, (smiles, y, note.strip('"')), strict=True))
        rows.append(Row(len(lines), cells, doubtful=place in strays))
    path.write_text("\n".join(lines) + "\n")
    return Table(path, names, tuple(rows), "doubtful", f"line {rows[strays[0]].line}", False, "a stray quote")


def _inner_quote(rng: random.Random, folder: Path) -> Table:
    path = folder / "t.csv"
    names, note = ("smiles", "y", "note"), rng.choice(('5" pipe', '"a"b', '"a" b', 'a"b"', '""a'))
    rows = tuple(
        Row(place + 2, dict(zip(names, ("CCO", "7", note if place == 3 else "x"), strict=True)), doubtful=place == 3)
        for place in range(8)
    )
    path.write_text("smiles,y,note\n" + "".join(",".join(row.cells.values()) + "\n" for row in rows))
    return Table(path, names, rows, "doubtful", "", False, "a quote inside a cell")


def _many_columns(rng: random.Random, folder: Path) -> Table:
    count = rng.choice((2000, 20_000))
    names = ("smiles", "y", *(f"c{place}" for place in range(count)))
    body = "".join(f"{smiles},7,{','.join(['1'] * count)}\n" for smiles in ("CCO", "CCN"))
    path = folder / "t.csv"
    path.write_text(",".join(names) + "\n" + body)
    rest = dict.fromkeys(names[2:], "1")
    rows = tuple(Row(2 + place, {"smiles": smiles, "y": "7", **rest}) for place, smiles in enumerate(("CCO", "CCN")))
    return Table(path, names, rows, what="thousands of columns")


def _long_line(rng: random.Random, folder: Path) -> Table:
    """A cell longer than any real one, or a file without a line end."""
    path = folder / "t.csv"
    path.write_bytes(b"smiles,y\nCCO,7\n" + rng.choice((b'"', b"")) + b"C" * (1 << 25) + b",7\nCCN,7\n")
    rows = tuple(Row(line, {"smiles": s, "y": "7"}, line == 3) for line, s in ((2, "CCO"), (3, "huge"), (4, "CCN")))
    return Table(path, ("smiles", "y"), rows, "doubtful", "line 3", False, "a cell of 32 MiB")


def _binary_junk(rng: random.Random, folder: Path) -> Table:
    path = folder / rng.choice(("t.csv", "t.tsv", "t.parquet", "t.csv.gz", "t.csv.xz"))
    path.write_bytes(rng.randbytes(rng.choice((1, 100, 5000))))
    return Table(path, COLUMNS, verdict="refused", what="junk")


def _another_kind(rng: random.Random, folder: Path) -> Table:
    """A good table under the name of another kind of file."""
    made, _ = _plain(rng, folder)
    path = folder / rng.choice(("t.parquet", "t.xlsx", "t", "t.json", "t.csv.zip", "t.pt", "t.CSV.bz2"))
    made.path.rename(path)
    return replace(made, path=path, verdict="refused", what="another kind of file")


SPOILERS: tuple[Callable[[random.Random, Path], Table], ...] = (
    _no_bytes,
    _only_blanks,
    _only_header,
    _same_names,
    _nameless,
    _not_utf8,
    _utf16,
    _torn,
    _flipped_archive,
    _not_an_archive,
    _two_archives,
    _open_quote,
    _open_quote,
    _inner_quote,
    _many_columns,
    _long_line,
    _binary_junk,
    _another_kind,
)


def flipped(content: bytes, rng: random.Random, count: int = 1) -> bytes:
    changed = bytearray(content)
    for _ in range(count):
        place = rng.randrange(len(changed))
        changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


# ---- lists of SMILES


def smiles_list(rng: random.Random, folder: Path) -> Table:
    style = replace(a_style(rng), separator=" ", quote_all=False)
    text = _Text(style)
    if rng.random() < 0.3:
        text.add(rng.choice(("smiles name", "SMILES", "Smiles\tid")))
    rows = []
    for _ in range(rng.choice((2, 6, 30))):
        if rng.random() < style.blank_lines:
            text.add(rng.choice(("", "   ")))
        smiles = rng.choice(tuple(MOLECULES) if rng.random() > 0.1 else ("C1CC", "C(C", "xyz"))
        name = rng.choice(("", "n1", "two words", "\u03b2-x", '"'))
        broken = rng.random() < 0.03
        line = text.add(smiles + (rng.choice(" \t") + name if name else "") + ("\0" if broken else ""))
        rows.append(Row(line, {"smiles": smiles, "name": name}, broken))
    whole = ("\ufeff" if style.mark else "") + "".join(text.text)
    path = folder / f"t{rng.choice(('.smi', '.txt'))}{style.packing}"
    path.write_bytes(packed(whole.encode(), style.packing))
    return Table(path, ("smiles", "name"), tuple(rows), exact=False)


# ---- SDF


def sdf(rng: random.Random, folder: Path) -> Table:
    end = rng.choice(("\n", "\r\n"))
    rows, text = [], []
    for number in range(1, rng.choice((3, 8, 20)) + 1):
        smiles = rng.choice(tuple(MOLECULES))
        cells = {"smiles": smiles, "y": cell(rng, "y", 0.1), "note": rng.choice(("x", "two words", ""))}
        block, broken = _block(rng, smiles)
        fields = "".join(f"{_head(rng, name)}\n{cells[name]}\n\n" for name in ("y", "note"))
        text.append(f"{block}{fields}$$$$\n")
        rows.append(Row(number, cells, broken))
    verdict: Verdict = "read"
    if rng.random() < 0.15:
        # Without its end a record takes the next one in: it is one record then, and a bad one.
        place = rng.randrange(len(rows) - 1)
        text[place] = text[place].replace("$$$$\n", "")
        verdict = "doubtful"
        rows = [
            *rows[:place],
            replace(rows[place], broken=True),
            *(replace(row, line=row.line - 1) for row in rows[place + 2 :]),
        ]
    whole = "".join(text)
    if rng.random() < 0.2:
        whole = whole.removesuffix("$$$$\n")
    packing = rng.choice(("", "", ".gz"))
    path = folder / f"t.sdf{packing}"
    path.write_bytes(packed(whole.replace("\n", end).encode(), packing))
    return Table(path, ("smiles", "y", "note"), tuple(rows), verdict, exact=False, what="SDF")


def _head(rng: random.Random, name: str) -> str:
    return rng.choice((f"> <{name}>", f">  <{name}>", f"> 25 <{name}>", f">  <{name}> (7)"))


def _block(rng: random.Random, smiles: str) -> tuple[str, bool]:
    from rdkit import Chem

    block = Chem.MolToMolBlock(Chem.MolFromSmiles(smiles), forceV3000=rng.random() < 0.1)
    chance = rng.random()
    if chance > 0.12:
        return block, False
    if chance < 0.04:
        return block.replace("V2000", "V9000").replace("V3000", "V9000"), True
    if chance < 0.08:
        lines = block.split("\n")
        return "\n".join(lines[:3]) + "\nM  END\n", True
    return "a\nb\nc\n 99 99  0  0  0  0  0  0  0  0999 V2000\nM  END\n", True


# ---- Parquet


def parquet(rng: random.Random, folder: Path) -> Table:
    import pyarrow as pa
    from pyarrow import parquet as pq

    count = rng.choice((1, 4, 20, 60))
    smiles = [cell(rng, "smiles", 0.05) if count > 1 else "CCO" for _ in range(count)]
    numbers = [rng.choice((1.5, -0.25, 7.0, None)) if place else 7.0 for place in range(count)]
    # pyarrow writes a float as Python does, and the truth knows cells by their text.
    rows = tuple(
        Row(place + 1, {"smiles": smiles[place], "y": "" if numbers[place] is None else repr(numbers[place])})
        for place in range(count)
    )
    arrays: dict[str, Any] = {"smiles": pa.array(smiles), "y": pa.array(numbers, pa.float64())}
    names = rng.sample(sorted(ODD_COLUMNS), rng.choice((0, 1, 1, 3)))
    for name in names:
        arrays[name] = ODD_COLUMNS[name](count)
    if rng.random() < 0.1:
        arrays["smiles"] = arrays["smiles"].dictionary_encode()
    path = folder / "t.parquet"
    options = {"compression": rng.choice(("snappy", "none", "gzip", "zstd")), "write_page_checksum": True}
    pq.write_table(pa.table(arrays), path, row_group_size=rng.choice((1, 7, 1000)), **options)
    made = Table(path, ("smiles", "y", *names), rows, exact=False, what=f"Parquet {', '.join(names)}")
    chance = rng.random()
    if chance < 0.3:
        path.write_bytes(flipped(path.read_bytes(), rng))
        return replace(made, verdict="doubtful", what="a flipped bit in Parquet")
    if chance < 0.4:
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(1, len(content))])
        return replace(made, verdict="refused", what="torn Parquet")
    return made


def _typed(make: Callable[[Any], tuple[Any, Any]]) -> Callable[[int], Any]:
    def column(count: int) -> Any:
        import pyarrow as pa

        value, kind = make(pa)
        return pa.array([value if place % 2 else None for place in range(count)], kind)

    return column


def _cast(make: Callable[[Any], tuple[int, Any, Any]]) -> Callable[[int], Any]:
    """Values that Python's own types cannot hold, made from plain integers."""

    def column(count: int) -> Any:
        import pyarrow as pa

        value, plain, kind = make(pa)
        return pa.array([value] * count, plain).view(kind)

    return column


ODD_COLUMNS: dict[str, Callable[[int], Any]] = {
    "date beyond": _cast(lambda pa: (2**31 - 1, pa.int32(), pa.date32())),
    "date before": _cast(lambda pa: (-(2**31), pa.int32(), pa.date32())),
    "milliseconds": _cast(lambda pa: (86_400_000 * 10**7, pa.int64(), pa.date64())),
    "seconds": _cast(lambda pa: (2**62, pa.int64(), pa.timestamp("ms"))),
    "microseconds": _cast(lambda pa: (-(2**62), pa.int64(), pa.timestamp("us", "UTC"))),
    "nanoseconds": _cast(lambda pa: (2**63 - 1, pa.int64(), pa.timestamp("ns"))),
    "duration": _cast(lambda pa: (2**62, pa.int64(), pa.duration("s"))),
    "time": _cast(lambda pa: (-5, pa.int64(), pa.time64("us"))),
    "zone": _cast(lambda pa: (0, pa.int64(), pa.timestamp("us", "Mars/Olympus"))),
    "list": _typed(lambda pa: ([1, None, 3], pa.list_(pa.int64()))),
    "struct": _typed(lambda pa: ({"a": 1, "b": [None]}, pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]))),
    "map": _typed(lambda pa: ([("k", 1.0)], pa.map_(pa.string(), pa.float64()))),
    "bytes": _typed(lambda pa: (b"\xff\xfe\0", pa.binary())),
    "fixed": _typed(lambda pa: (b"\0\1", pa.binary(2))),
    "nothing": _typed(lambda pa: (None, pa.null())),
    "large": _typed(lambda pa: (2**64 - 1, pa.uint64())),
    "decimal": _typed(lambda pa: (None, pa.decimal128(38, 10))),
    "half": _typed(lambda pa: (None, pa.float16())),
    "flag": _typed(lambda pa: (True, pa.bool_())),
    "text": _typed(lambda pa: ("a\nb\0c", pa.large_string())),
}
