"""Messages that reach Python users as well as the command name things, not flags."""

import ast
import re
from pathlib import Path

import tokengt

PACKAGE = Path(tokengt.__file__).parent
# These speak to people at a terminal: the command itself, what it prints of a run, and a command that the card shows.
AT_A_TERMINAL = ("cli", "bench", "experiments", "workflow/describing.py", "training/card.py", "training/tables.py")


def _sentences(file: Path) -> list[str]:
    """Every text of a module that is no docstring; the parts of an f-string together."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    silent = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.Expr) for part in ast.walk(node.value)
        if isinstance(node.value, ast.Constant)
    }  # fmt: skip
    inside = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
        if part is not node
    }  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if id(node) in silent | inside or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = [node] if isinstance(node, ast.Constant) else node.values
        found.append("".join(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)))
    return found


def test_a_flag_is_named_only_beside_the_python_way() -> None:
    """A Python user who reads "use --task multiclass" has nowhere to put it."""
    checked, wrong = 0, []
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith(AT_A_TERMINAL):
            continue
        checked += 1
        flags = [text for text in _sentences(file) if re.search(r"(^|[\s(:])--[a-z]", text)]
        wrong += [f"{place}: {text}" for text in flags if "in Python" not in text]
    assert checked > 80
    assert not wrong, wrong
