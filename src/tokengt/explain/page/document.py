"""One self-contained HTML file out of a template, a style, a script and data.

The file may load nothing and run nothing but its own script: its content security policy names the checksums of the two
and forbids everything else, so that no text of a user can become code, whatever it says.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from tokengt._version import __version__

# In the order in which they stand in the page: a later rule wins over an earlier one.
STYLES = ("base", "controls", "graph", "map", "charts", "tables")


def assemble(title: str, data: Any, scripts: Sequence[str]) -> str:
    """The page of these scripts, in their order, with data for them; ``data`` is whatever JSON can say."""
    style = "\n".join(_file(f"style/{name}.css") for name in STYLES)
    script = _joined(tuple(scripts))
    parts = {
        "title": html.escape(title),
        "version": __version__,
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": as_json(data),
    }
    # All places are filled at once: what is put into one of them may look like another.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def as_json(data: Any) -> str:
    """JSON that can stand in a script element: it holds no sign that would end it or begin a comment."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


@cache
def _joined(scripts: tuple[str, ...]) -> str:
    """The scripts as one function of their own, so that none of their names are the page's."""
    return '(() => {\n"use strict";\n' + "\n".join(_file(f"script/{name}.js") for name in scripts) + "})();\n"


@cache
def _file(name: str) -> str:
    return resources.files("tokengt.explain.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
