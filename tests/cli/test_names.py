"""A name that does not exist is answered with the nearest one, in one sentence; files are found behind targets."""

from pathlib import Path

import pytest

from tests.cli.command import here, refused, settings, succeeded
from tests.workflow.small import TINY, molecule_csv
from tokengt.cli import _parser
from tokengt.cli.settings import PLAIN
from tokengt.cli.settings import settings as read_settings
from tokengt.config import field_paths
from tokengt.training.config import TrainingConfig
from tokengt.training.spec import read_run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epoch", "2"], "tokengt train has no option --epoch (did you mean --epochs?)"),
        (["--metrics=prc"], "tokengt train has no option --metrics (did you mean --metric?)"),
        (["--split-column", "set"], "tokengt train has no option --split-column (did you mean --split?)"),
        (["--task", "regresion"], "--task is 'regresion' (did you mean regression?); expected one of regression, bin"),
        (["--preset", "gni"], "preset 'gni' is unknown (did you mean gin?)"),
        (["--split", "scafold"], "split is 'scafold' (did you mean scaffold?)"),
        (["--set", "epochs=2"], "setting 'epochs' is unknown (did you mean training.epochs?)"),
        (["--set", "lr=2"], "setting 'lr' is unknown (did you mean training.learning_rate?)"),
        (["--set", "num_layers=2"], "setting 'num_layers' is unknown (did you mean model.encoder.num_layers?)"),
        (
            ["--set", "model.num_layers=2"],
            "model.num_layers is unknown for kind tokengt (did you mean encoder.num_layers",
        ),
        (["--set", "training.epoch=2"], "training.epoch is unknown (did you mean epochs?)"),
        (["--metric", "spearmann"], "training.metric is 'spearmann' (did you mean spearman?)"),
        (["--loss", "hubert"], "training.loss is 'hubert' (did you mean huber?)"),
        (["--epochs", "many"], "training.epochs is 'many'; expected a whole number"),
        (["--epochs", "2", "--set", "training.epochs=3"], "--epochs is 2, but --set training.epochs is 3"),
        (["more.csv"], "'more.csv' is one argument more than tokengt train takes"),
        (["--target", "yy"], "has no column 'yy', which the target option names; the columns are smiles, y, z"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    source = molecule_csv(tmp_path / "data.csv", 12)
    target = [] if "--target" in arguments else ["--target", "y"]
    done = here("train", source, *arguments, *target, "--out", tmp_path / "run", "--workers", "1")
    assert sentence in refused(done)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_option_that_is_misspelled_is_said_before_what_is_missing() -> None:
    assert "tokengt predict has no option --outt (did you mean --out?)" in refused(
        here("predict", "r", "a", "--outt", "x")
    )
    assert "tokengt has no option --verzion (did you mean --version?)" in refused(here("--verzion"))
    assert "required: --out" in refused(here("predict", "r", "a.csv"))


def test_a_wrong_verb_is_answered_with_the_nearest() -> None:
    assert "the verb is 'trian' (did you mean train?); expected one of prepare, train" in refused(here("trian"))


def test_plain_options_are_settings() -> None:
    """One road: the option and --set give the same, twice the same is no conflict."""
    assert {path.removeprefix("training.") for path in PLAIN.values()} <= set(field_paths(TrainingConfig))
    for verb in (["train", "a.csv"], ["finetune", "run", "a.csv"]):
        options = _parser().parse_args(
            [
                *verb,
                "--out",
                "r",
                "--epochs",
                "3",
                "--lr",
                "1e-4",
                "--batch-size",
                "8",
                "--metric",
                "prc",
                "--loss",
                "mae",
            ]
        )
        plain = read_settings(options)
        set_ = [text for path, value in plain.items() for text in ("--set", f"{path}={value}")]
        assert read_settings(_parser().parse_args([*verb, "--out", "r", *set_])) == plain
        assert plain == {
            "training.epochs": "3",
            "training.batch_size": "8",
            "training.learning_rate": "1e-4",
            "training.metric": "prc",
            "training.loss": "mae",
        }
    both = ["train", "a.csv", "--out", "r", "--epochs", "3", "--set", "training.epochs=3"]
    assert read_settings(_parser().parse_args(both)) == {"training.epochs": "3"}


@pytest.mark.parametrize(
    ("arguments", "data", "target"),
    [
        (["--out", "a", "--target", "lipo", "l.csv"], "l.csv", ["lipo"]),
        (["--target", "a", "b", "l.csv", "--out", "a"], "l.csv", ["a", "b"]),
        (["l.csv", "--target", "a", "b", "c", "--out", "a"], "l.csv", ["a", "b", "c"]),
        (["--out", "a", "--target", "gap", "qm9"], "qm9", ["gap"]),
        (["--target", "a", "b.v2", "--out", "a", "l.csv"], "l.csv", ["a", "b.v2"]),
        (["--target", "a", "--descriptors", "t", "l.csv", "--out", "a"], "l.csv", ["a"]),
        (["--fractions", "0.8", "0.1", "0.1", "l.csv", "--target", "a", "--out", "a"], "l.csv", ["a"]),
    ],
)
def test_a_file_behind_the_targets_is_the_data(arguments: list[str], data: str, target: list[str]) -> None:
    options = _parser().parse_args(["train", *arguments])
    assert (str(options.data), options.target) == (data, target)


def test_files_behind_the_targets_of_finetune() -> None:
    for arguments in (["runs.d", "--target", "y", "l.csv"], ["--target", "y", "runs.d", "l.csv"]):
        options = _parser().parse_args(["finetune", "--out", "a", *arguments])
        assert (str(options.start), str(options.data), options.target) == ("runs.d", "l.csv", ["y"])


def test_forgotten_data_is_said() -> None:
    assert "there is no data; give a file" in refused(here("train", "--target", "a", "b", "--out", "run"))


def test_all_targets_and_a_metric_from_the_command(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 24)
    tiny = {name: value for name, value in TINY.items() if name != "training.epochs"}
    run = tmp_path / "run"
    arguments = ["--epochs", "2", "--metric", "MAE", "--loss", "huber", "--workers", "1", *settings(tiny)]
    done = succeeded(here("train", "--out", run, *arguments, "--target", "all", source))
    assert "targets: y, z" in done.stderr
    assert "test: mae" in done.stdout
    spec = read_run(run)
    assert (spec.task.names, spec.training.epochs, spec.task.metric, spec.task.loss) == (("y", "z"), 2, "mae", "huber")
    assert "| metric | mae |" in (run / "README.md").read_text()


@pytest.mark.parametrize("option", ["--smiles=--", "--target=--", "--seed=--"])
def test_two_dashes_are_no_value(option: str) -> None:
    sentence = refused(here("train", "data.csv", "--out", "run", option))
    assert f"{option.partition('=')[0]} is '--'; expected a value" in sentence


def test_a_sentence_is_one_line_and_short_whatever_it_quotes() -> None:
    for name in ("x" * 6000, "a\nb\tc", "\x1b[31mred"):
        done = here("info", name)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert len(done.stderr) < 1500
        assert done.stderr.rstrip("\n").isprintable()


def test_no_epochs_are_refused(tmp_path: Path) -> None:
    """The setting has a zero of its own, which would train a hundred."""
    source = molecule_csv(tmp_path / "data.csv")
    sentence = refused(here("train", source, "--target", "y", "--out", tmp_path / "run", "--epochs", "0"))
    assert "--epochs is 0; expected 1 or more" in sentence
