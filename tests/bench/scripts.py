"""Scripts of ``benchmarks/`` as modules: they are no package, and import each other by name."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        return importlib.import_module(name)
