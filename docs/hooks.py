"""Docstrings name things the way Sphinx does (:class:`Graph`); show them as plain code."""

import re

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):<code>~?([^<]+)</code>")


def on_page_content(html: str, **_: object) -> str:
    return _ROLE.sub(r"<code>\1</code>", html)
