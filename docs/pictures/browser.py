"""What the pictures of pages have in common: the browser, and files of few bytes."""

import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image

_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def launched(session: Any) -> Any:
    """Chromium (Debian's package), driven by Playwright."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("the pictures of pages need Chromium, which is not installed")
    return session.chromium.launch(executable_path=program, args=list(_FLAGS))


def make_small(file: Path) -> None:
    """256 colours are enough for pages of ours, and a third of the bytes."""
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
