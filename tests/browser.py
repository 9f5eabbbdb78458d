"""Pages in a real browser, and what they do besides being shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar


@dataclass(frozen=True, eq=False)
class Opened:
    """A page, what it said on the console, in errors and in dialogs, and every address that it asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


_Opened = TypeVar("_Opened", bound=Opened)


@contextmanager
def opening(chromium: Any, kind: Callable[[Any], _Opened], seconds: float) -> Iterator[Callable[..., _Opened]]:
    """A function that opens an address, at a width and in a colour scheme; what it opened is closed at the end.

    Args:
        chromium: the browser.
        kind: what the page is given as: :class:`Opened`, or one that knows the page.
        seconds: how long anything in the page may take.
    """
    pages = []

    def opened(address: str, width: int = 1200, scheme: str = "light") -> _Opened:
        found = kind(_window(chromium, width, scheme).new_page())
        pages.append(found.page)
        found.page.set_default_timeout(1000 * seconds)
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss()))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(address)
        return found

    yield opened
    for page in pages:
        page.close()


@cache
def _window(chromium: Any, width: int, scheme: str) -> Any:
    """Making one takes as long as drawing a page, so that tests share them."""
    return chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
