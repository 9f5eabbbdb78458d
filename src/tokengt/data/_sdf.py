"""SDF files: mol blocks with data fields, a record at a time."""

import re
from collections.abc import Iterator
from pathlib import Path

from tokengt.data._text import Sink, lines_of

MOLBLOCK = "molblock"
_FIELD = re.compile(r">.*?<(.*)>")
# No molecule is this large: a longer record means that the file is of another kind and never ends one.
_LONGEST_RECORD = 1 << 24


def sdf_fields(path: Path) -> list[str]:
    """Names of all data fields in the file, in the order they first appear."""
    names: dict[str, None] = {}
    for _, fields, _ in sdf_records(path):
        names.update(dict.fromkeys(fields))
    return list(names)


def sdf_records(path: Path, sink: Sink | None = None) -> Iterator[tuple[str, dict[str, str], str | None]]:
    """Mol block, data fields and problem of every record; what follows the last ``$$$$`` is one unless it is blank."""
    record: list[str] = []
    length = number = 0
    with lines_of(path, sink) as lines:
        for line in lines:
            if line.startswith("$$$$"):
                yield _parsed(record)
                record, length, number = [], 0, number + 1
                continue
            record.append(line.rstrip("\r\n"))
            length += len(line)
            if length > _LONGEST_RECORD:
                raise ValueError(f"{path} record {number + 1} does not end; expected $$$$ after each molecule")
    if any(line.strip() for line in record):
        yield _parsed(record)


def _parsed(record: list[str]) -> tuple[str, dict[str, str], str | None]:
    """The block up to ``M  END``, then fields: a line ``> <NAME>``, lines of its value, a blank line."""
    problem = None
    ends = (place for place, line in enumerate(record) if line.startswith("M  END"))
    stop = next(ends, None)
    if stop is None:
        heads = (place for place, line in enumerate(record) if place > 2 and line.startswith(">"))
        stop = next(heads, len(record)) - 1
    fields: dict[str, list[str]] = {}
    value: list[str] | None = None
    for line in record[stop + 1 :]:
        if value is None:
            head = _FIELD.match(line)
            value = fields.setdefault(head[1].strip(), []) if head else None
            if line.startswith("M  END"):
                problem = "the record holds more than one molecule; expected $$$$ after each"
        elif line.strip():
            value.append(line)
        else:
            value = None
    texts = {name: "\n".join(lines) for name, lines in fields.items()}
    return "\n".join(record[: stop + 1]) + "\n", texts, problem
