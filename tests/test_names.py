"""The names of the package: what a star brings, and what is there by its full name."""

import builtins
import json
import subprocess
import sys

import tokengt


def test_a_star_shadows_nothing() -> None:
    code = (
        "import builtins\n"
        "from json import load\n"
        "__version__ = 'mine'\n"
        "before = load\n"
        "from tokengt import *\n"
        "assert load is before and __version__ == 'mine'\n"
        "assert TokenGT and train and from_pyg\n"
        "print([name for name in globals() if not name.startswith('__') and hasattr(builtins, name)])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_no_name_of_a_star_is_one_that_others_export() -> None:
    assert "load" not in tokengt.__all__
    assert not set(tokengt.__all__) & {*dir(builtins), *json.__all__, "save"}


def test_every_name_is_there_by_its_full_name() -> None:
    assert tokengt.load.__module__ == "tokengt.inference.predictor"
    assert {"load", "__version__", "presets", *tokengt.__all__} <= set(dir(tokengt))
    for name in dir(tokengt):
        assert getattr(tokengt, name) is not None
