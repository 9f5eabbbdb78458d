"""The installed command, as a person types it."""

import subprocess
import sys
from pathlib import Path

from tests.cli.command import here

TOKENGT = Path(sys.executable).parent / "tokengt"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOKENGT), *arguments], capture_output=True, text=True, check=False)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_help_lists_the_verbs_and_imports_no_torch() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "import-official" in done.stdout
    seen = python(
        "import sys; from tokengt.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    assert seen.splitlines()[-1] == "False"


def test_import_loads_nothing_it_does_not_need() -> None:
    """What would make ``import tokengt`` slow: benchmarks/startup.py has the times."""
    code = "import sys, torch{}; print(*(m for m in sys.modules if m.count('.') < 4))"
    alone, together = (set(python(code.format(more)).split()) for more in ("", "; from tokengt import Graph, TokenGT"))
    heavy = {"scipy", "rdkit", "networkx", "torch_geometric", "matplotlib", "pandas", "beartype", "torch._dynamo"}
    assert "tokengt.models.tokengt.model" in together
    assert not (together - alone) & heavy


def test_presets_are_listed() -> None:
    done = here("presets")
    assert done.returncode == 0
    assert "regression-lap" in done.stdout
    assert "12 layers x 768, 32 heads, laplacian 16, softmax attention" in done.stdout


def test_errors_are_one_sentence() -> None:
    done = here("import-official", "/nowhere/checkpoint.pt", "--out", "/tmp/never")
    assert done.returncode == 2
    assert done.stderr.startswith("tokengt: ")
    assert "/nowhere/checkpoint.pt" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_choices_are_value_errors() -> None:
    """Outside the tests nobody checks types, so configs check their own choices."""
    code = """
from tokengt import EncoderConfig, FavorConfig, HeadConfig, LaplacianIds, SoftmaxConfig, TokenGTConfig, TokensConfig
for build in (
    lambda: TokenGTConfig.from_dict({"identifiers": {"kind": "laplace"}}),
    lambda: TokenGTConfig.from_dict({"encoder": {"attention": {"kind": "linear"}}}),
    lambda: EncoderConfig(activation="tanh"),
    lambda: HeadConfig(level="graphs"),
    lambda: HeadConfig(readout="max"),
    lambda: TokensConfig(layout="both"),
    lambda: LaplacianIds(which="highest"),
    lambda: SoftmaxConfig(backend="flash"),
    lambda: FavorConfig(backend="varlen"),
):
    try:
        build()
    except ValueError as error:
        print(error)
"""
    sentences = python(code).splitlines()
    assert len(sentences) == 9
    assert sentences[0].startswith(
        "config.identifiers.kind is 'laplace' (did you mean laplacian?); expected one of orf"
    )
