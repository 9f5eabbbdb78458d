"""Cells of a table: each is run once and kept as a file, so that a stopped experiment goes on where it was."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokengt.experiments.tables import write_json

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Nobody listens."""


def kept_cell(file: Path, settings: Mapping[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` found: read from ``file`` when it is there, else run now and written to it.

    Raises:
        ValueError: the file is no cell, or was made with other ``settings``.
    """
    wanted = json.loads(json.dumps(settings))
    if file.exists():
        try:
            content = json.loads(file.read_text())
            made_with, cell = content["settings"], dict(content["found"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is no result of this experiment; remove it or choose another folder") from error
        if made_with != wanted:
            raise ValueError(f"{file} was made with other settings; remove it or choose another folder")
        return cell
    cell = run()
    write_json(file, {"settings": wanted, "found": cell})
    return cell
