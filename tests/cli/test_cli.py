"""The installed command, as a person types it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import here, refused
from tokengt.cli import main
from tokengt.presets import PRESETS
from tokengt.workflow import comparing, describing, fitting, predicting

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


def test_the_package_is_run_as_its_command_is() -> None:
    done = subprocess.run([sys.executable, "-m", "tokengt", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, run("--help").stdout)


def test_presets_are_listed() -> None:
    done = here("presets")
    assert done.returncode == 0
    assert "regression-lap" in done.stdout
    assert "12 layers x 768, 32 heads, laplacian 16, softmax attention" in done.stdout
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == list(PRESETS)


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


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Every verb that these tests try now raises this."""

    def fail(*_: object, **__: object) -> None:
        raise error

    for room, names in (
        (describing, ["info"]),
        (fitting, ["train"]),
        (comparing, ["compare"]),
        (predicting, ["predict_file", "embed_file"]),
    ):
        for name in names:
            monkeypatch.setattr(room, name, fail)


class Strange(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        KeyError("graphs"),
        RuntimeError("shape\n  [3]"),
        AssertionError(),
        RecursionError("deep"),
        Strange("x"),
        OSError(),
    ],
)
def test_no_exception_comes_out_of_the_command(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fails(monkeypatch, error)
    done = here("info", "x")
    assert done.returncode == 70
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"tokengt: unexpected {type(error).__name__}")
    assert " ".join(str(error).split()) in sentence
    assert "TOKENGT_TRACEBACK=1" in sentence
    monkeypatch.setenv("TOKENGT_TRACEBACK", "1")
    done = here("info", "x")
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert "in fail" in done.stderr


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("row 3: bad"), "tokengt: row 3: bad"),
        (OSError(28, "No space left on device", "out.csv"), "tokengt: [Errno 28] No space left on device: 'out.csv'"),
        (ImportError("needs RDKit"), "tokengt: needs RDKit"),
        (MemoryError(), "tokengt: out of memory; to train, lower training.batch_size"),
        (RuntimeError("DefaultCPUAllocator: not enough"), "tokengt: out of memory; to train, lower"),
    ],
)
def test_bad_input_and_full_machines_have_status_2(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    fails(monkeypatch, error)
    assert refused(here("info", "x")).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("train", "a.csv", "--out", "run"), "go on with the same command and --resume"),
        (("finetune", "old", "a.csv", "--out", "run"), "go on with the same command and --resume"),
        (("predict", "run", "a.csv", "--out", "o.csv"), "the same command goes on where it was"),
        (("compare", "a.csv", "--presets", "small", "--out", "o"), "the same command goes on where it was"),
        (("embed", "run", "a.csv", "--out", "o.npz"), "the same command goes on where it was"),
        (("info", "run"), "begin again with the same command"),
    ],
)
def test_whoever_stops_a_command_is_told_how_to_go_on_with_it(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], advice: str
) -> None:
    """``predict`` has no --resume, so it does not advise it."""
    fails(monkeypatch, KeyboardInterrupt())
    done = here(*arguments)
    assert (done.returncode, done.stderr) == (130, f"tokengt: stopped; {advice}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "a.csv", "--target", "y", "--out", ""),
        ("prepare", "", "--out", "store"),
        ("predict", "run", "a.csv", "--out", ""),
        ("info", ""),
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert done.returncode == 2
    assert "'' is no path; expected the name of a file or a folder" in done.stderr


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tokengt info run | head -0``."""
    monkeypatch.setattr(describing, "info", lambda path: ["a line"])
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        assert main(["info", "x"]) == 1
        printed.flush()  # As Python does at its end: nobody complains any more.


def test_output_that_cannot_be_printed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """``tokengt info run > /dev/full``."""
    monkeypatch.setattr(describing, "info", lambda path: ["a line"])
    with open("/dev/full", "w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        assert main(["info", "x"]) == 2
        printed.flush()
    assert capfd.readouterr().err == "tokengt: [Errno 28] No space left on device\n"
