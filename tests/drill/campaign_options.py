"""Hostile command lines: odd values, odd combinations, what is missing, what is unknown."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.drill.case import Case
from tests.drill.oracle import Fault, check_folder, judged, snapshot
from tests.drill.workshop import TINY, Run

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "",
    "abc",
    "true",
    "none",
    "1,2",
    "1000000000",
    "1" + "0" * 30,
    "0x10",
    " 3 ",
    "\u0663",
)
WORDS = (
    "",
    " ",
    "nothing",
    "smiles",
    "y",
    "Y",
    "y ",
    "../x",
    "a\nb",
    "*",
    "\u03b2",
    "x" * 5000,
    "--",
    "-",
    "None",
    "0",
    "%s",
    "{}",
)
SETTINGS = (
    "model.dim",
    "model.encoder.num_layers",
    "model.encoder.num_heads",
    "model.encoder.mlp_dim",
    "model.encoder.mlp_dropout",
    "model.encoder.drop_path",
    "model.encoder.attention.kind",
    "model.encoder.attention.dropout",
    "model.encoder.attention",
    "model.encoder",
    "model.identifiers.kind",
    "model.identifiers.dim",
    "model.identifiers.dropout",
    "model.tokens.order",
    "model.tokens.layout",
    "model.head.out_dim",
    "model.head.level",
    "model.kind",
    "model",
    "training.batch_size",
    "training.batch_tokens",
    "training.accumulate",
    "training.learning_rate",
    "training.weight_decay",
    "training.beta2",
    "training.warmup",
    "training.schedule",
    "training.clip",
    "training.ema",
    "training.patience",
    "training.minutes",
    "training.precision",
    "training.checkpoint_seconds",
    "training",
    "training.epoch",
    "epochs",
    "dim",
    "",
    ".",
    "model.",
    "model..dim",
    "seed",
)
# Sizes that cannot be built, and the first to be tried.
HUGE = tuple(
    (name, value)
    for name in (
        "model.dim",
        "model.encoder.num_layers",
        "model.encoder.num_heads",
        "model.encoder.mlp_dim",
        "model.identifiers.dim",
    )
    for value in ("1000000", "1000000000", "1" + "0" * 30)
)
SETTING_VALUES = (
    *NUMBERS,
    "softmax",
    "favor",
    "orf",
    "laplacian",
    "none",
    "gin",
    "bfloat16",
    "float64",
    "linear",
    "[]",
    "{}",
    "a=b",
)
_EXTRA = (
    "--epochs",
    "--verbose",
    "-v",
    "--out",
    "--batch-size",
    "--lr",
    "--help",
    "--metric",
    "--x=1",
    "extra",
    "@file",
    "--se",
    "-",
)


def play(case: Case) -> list[Fault]:
    (verb,) = case.rng.choices(tuple(VERBS), [weight for weight, _ in VERBS.values()])
    words = list(VERBS[verb][1](case))
    for _ in range(case.rng.choice((0, 0, 0, 0, 1))):
        _shake(words, case.rng)
    before = snapshot(case.folder)
    answer = case.call(*words)
    faults = judged(answer, may_fail=verb == "verify")
    if answer.done and verb == "embed" and (case.folder / words[-1]).is_file():
        faults += _wrong_kind(case.folder / words[-1], str(answer))
    return faults or check_folder(
        answer,
        before,
        ("out", "out.csv", "out.html", "report.html", "v.npz", "v.csv", "v.parquet", "v.NPZ", "benchmarks"),
    )


def _wrong_kind(path: Path, call: str) -> list[Fault]:
    """Vectors are of the kind that their file's name says."""
    begin = path.read_bytes()[:4]
    kind = ".npz" if begin.startswith(b"PK") else ".parquet" if begin == b"PAR1" else ".csv"
    return [] if path.suffix.lower() == kind else [Fault("silent", f"{path.name} is a file of the kind {kind}", call)]


def _shake(words: list[str], rng: random.Random) -> None:
    """One word is dropped, doubled, replaced or added."""
    place, way = rng.randrange(len(words)), rng.random()
    if way < 0.3:
        del words[place]
    elif way < 0.5:
        words.insert(place, words[place])
    elif way < 0.7:
        words[place] = rng.choice(WORDS)
    else:
        words.insert(place, rng.choice(_EXTRA))


def _some(rng: random.Random, options: Sequence[tuple[str, Sequence[str]]], most: int = 3) -> list[str]:
    """Between one and ``most`` options, each with a value out of its list."""
    words = []
    for name, values in rng.sample(options, rng.randrange(1, most + 1)):
        value = rng.choice(values)
        # An empty name stands for a list of words that belong to one option.
        words += value.split() if not name else [name] if not values[0] and rng.random() < 0.5 else [f"{name}={value}"]
    return words


_COLUMN = ("smiles", "y", "y2", "b", "c", "d", "part", *WORDS)
_DATA = (
    ("--smiles", _COLUMN),
    ("--target", _COLUMN),
    ("--descriptors", _COLUMN),
    ("--task", ("regression", "binary", "multiclass", "ranking", "")),
    ("--level", ("graph", "node", "edge", "atom", "")),
    ("--salts", ("keep", "largest", "drop")),
    ("--stereo", ("keep", "drop", "x")),
    ("--hydrogens", ("implicit", "explicit", "x")),
)
_RUN = (
    (
        "--split",
        ("random", "scaffold", "column:part", "column:y", "column:", "given", "Scaffold", "scaffold_balanced", *WORDS),
    ),
    ("--fractions", NUMBERS),
    (
        "",
        (
            "--fractions 0.8 0.1 0.1",
            "--fractions 1 0 0",
            "--fractions 0 0 1",
            "--fractions nan 0.5 0.5",
            "--fractions -1 1 1",
            "--fractions 1e400 0 0",
            "--fractions 5 3 2",
            "--fractions 0.5 0.5",
            "--fractions 1 1 1",
        ),
    ),
    ("--folds", ("0", "1", "2", "3", "-1", "41", "1000000000", "abc", "1.5")),
    ("--ensemble", ("0", "1", "-1", "abc", "1.5", "nan")),
    ("--seed", NUMBERS),
    ("--device", ("cpu", "cuda", "auto", "tpu", "")),
    ("--devices", ("0", "-1", "abc", "1")),
    ("--strategy", ("auto", "ddp", "fsdp", "x")),
    ("--workers", ("0", "-1", "1", "1000000000", "abc")),
    ("--preset", ("small", "nothing", "", "regression_", "SMALL", "../x", "gin")),
)


def _thing(case: Case, *names: str) -> str:
    """One of these things of the workshop; the empty name is a path where there is nothing."""
    name = case.rng.choice(names)
    thing = getattr(case.shop, name) if name else "nothing"
    return str(thing.folder if isinstance(thing, Run) else thing)


def _prepare(case: Case) -> list[str]:
    rest = (("--split-column", _COLUMN), ("--workers", NUMBERS), ("--engine", ("processes", "spark", "")))
    return ["prepare", str(case.shop.molecules), "--out", "out", *_some(case.rng, (*_DATA, *rest))]


def _train(case: Case) -> list[str]:
    words = ["train", str(case.shop.molecules), "--target", "y", "--out", "out", *TINY]
    return [*words, *_some(case.rng, (*_DATA, *_RUN))]


def _train_set(case: Case) -> list[str]:
    words = ["train", str(case.shop.molecules), "--target", "y", "--out", "out", *TINY]
    for _ in range(case.rng.choice((1, 1, 2))):
        huge = case.rng.random() < 0.1
        name, value = case.rng.choice(HUGE) if huge else (case.rng.choice(SETTINGS), case.rng.choice(SETTING_VALUES))
        words.append(f"--set={name}={value}")
    if case.rng.random() < 0.05:
        words.append("--set=nothing")
    return words


def _finetune(case: Case) -> list[str]:
    start = _thing(case, "single", "described", "store", "graphs", "")
    words = ["finetune", start, str(case.shop.molecules), "--target", "y", "--out", "out", "--set=training.epochs=1"]
    options = [each for each in (*_DATA, *_RUN) if each[0] not in ("--preset", "--salts", "--stereo", "--hydrogens")]
    return [*words, *_some(case.rng, options), *(["--freeze"] if case.rng.random() < 0.3 else [])]


def _compare(case: Case) -> list[str]:
    """Mostly what is refused: what is not takes several trainings."""
    presets = case.rng.choice(("small", "small,gin", "small,", ",", "", "smal", "small,small", "../x", *WORDS))
    words = ["compare", str(case.shop.molecules), "--target", "y", "--out", "out", f"--presets={presets}", "--seeds=1"]
    options = (
        ("--budget", ("0", "-1", "nan", "inf", "abc", "0.001")),
        ("--reference", ("small", "random-forest", "nothing", "")),
        ("--seeds", ("0", "-1", "1", "1000000000", "abc", "1.5")),
        ("--set", ("small:model.dim=16", "other:model.dim=16", ":=", "small:=1", "training.minutes=-1")),
    )
    kept = [each for each in (*_DATA, *_RUN) if each[0] not in ("--ensemble", "--devices", "--strategy", "--preset")]
    kept = [each for each in kept if each[0] != "--folds"]
    return [*words, "--no-floors", "--epochs=1", *_some(case.rng, (*options, *kept))]


def _predict(case: Case) -> list[str]:
    run = _thing(case, "single", "classes", "on_graphs", "store", "")
    source = _thing(case, "molecules", "molecules", "graphs", "store", "single", "")
    options = (
        ("--draws", ("0", "-1", "1", "3", "abc", "1.5", "nan")),
        ("--over", ("identifiers", "dropout", "x")),
        ("--smiles", _COLUMN),
        ("--device", ("cpu", "cuda", "x")),
    )
    return ["predict", run, source, "--out", "out.csv", *_some(case.rng, options)]


def _evaluate(case: Case) -> list[str]:
    run = _thing(case, "single", "classes", "described", "on_graphs")
    source = _thing(case, "molecules", "store", "class_store", "graph_store", "graphs", "")
    options = (("--smiles", _COLUMN), ("--device", ("cpu", "x")), ("--json", ("",)), ("--out", ("out", "")))
    return ["evaluate", run, source, *_some(case.rng, options)]


def _embed(case: Case) -> list[str]:
    out = case.rng.choice(("v.npz", "v.csv", "v", "", "v.parquet", "v.txt", "v.NPZ"))
    return ["embed", str(case.shop.single.folder), str(case.shop.molecules), "--out", out]


def _explain(case: Case) -> list[str]:
    run = _thing(case, "single", "classes", "described", "on_graphs", "store", "")
    source = case.rng.choice(("CCO", "C1CC", "c1ccccc1O", _thing(case, "molecules", "graphs", "store", ""), *WORDS))
    options = (
        ("--row", ("0", "-1", "1", "2", "999", "1" + "0" * 30, "abc", "1.5")),
        ("--target", _COLUMN),
        ("--item", ("0", "-1", "7", "abc")),
        ("--draws", ("0", "-1", "2", "abc")),
        ("--over", ("identifiers", "dropout", "x")),
        ("--smiles", _COLUMN),
        ("--summary", ("",)),
        ("--no-attributions", ("",)),
        ("--data", ("nothing", "", str(case.shop.store))),
        ("--descriptors", ("1", "nan", "abc", "1e400")),
        ("--max-atoms", ("0", "-1", "2", "abc")),
        ("--out", ("out.html", "out", "", "v.csv")),
    )
    return ["explain", run, source, *_some(case.rng, options)]


def _info(case: Case) -> list[str]:
    return [
        "info",
        case.rng.choice((str(case.shop.single.folder), str(case.shop.graphs), str(case.shop.molecules), *WORDS)),
    ]


def _verify(case: Case) -> list[str]:
    options = (
        ("--nodes", ("0", "-1", "1", "2", "3", "1000000000", "abc", "1.5")),
        ("--sharpness", ("0", "-1", "nan", "inf", "1e-300", "1e12", "1e400", "abc")),
        ("--seed", ("-1", "1", "abc", "1" + "0" * 30)),
        ("--order", ("0", "1", "4", "abc")),
    )
    return ["verify", "--order=1", *_some(case.rng, options, 2)]


def _bench(case: Case) -> list[str]:
    """Only what is refused: a measurement takes minutes."""
    bad = (
        "--batch=-1",
        "--steps=-1",
        "--rounds=0",
        "--layers=0",
        "--dim=-8",
        "--heads=0",
        "--heads=7",
        "--dropout=2",
        "--dropout=nan",
        "--backend=x",
        "--scale=-1",
        "--scale=nan",
        "--seed=abc",
        "--attention=x",
        "--shape=x",
        "--epochs=2",
        "--set=training.ema=0.9",
        "--real=nothing.csv",
    )
    return [
        "bench",
        "--preset=small",
        "--device=cpu",
        "--steps=1",
        "--rounds=1",
        "--batch=2",
        "--out=out",
        case.rng.choice(bad),
    ]


def _import(case: Case) -> list[str]:
    path = case.folder / "checkpoint.pt"
    path.write_bytes(
        case.rng.choice(
            (b"", b"PK\x03\x04", b"\x80\x04.", b"\x80\x02cos\nsystem\n(S'touch exploded'\ntR.", b"text" * 100)
        )
    )
    source = case.rng.choice((str(path), str(case.shop.molecules), str(case.folder), "nothing"))
    return ["import-official", source, "--out", "out"]


def _other(case: Case) -> list[str]:
    words = [
        case.rng.choice(
            ("presets", "trian", "", "--version", "-h", "info", "reproduce", "reproduce basis", "bench", *WORDS)
        )
    ]
    return words + ([case.rng.choice(_EXTRA)] if case.rng.random() < 0.5 else [])


VERBS = {
    "prepare": (6, _prepare),
    "train": (6, _train),
    "train --set": (12, _train_set),
    "finetune": (3, _finetune),
    "compare": (3, _compare),
    "predict": (5, _predict),
    "evaluate": (3, _evaluate),
    "embed": (2, _embed),
    "explain": (4, _explain),
    "info": (2, _info),
    "verify": (1, _verify),
    "bench": (1, _bench),
    "import": (1, _import),
    "other": (2, _other),
}
