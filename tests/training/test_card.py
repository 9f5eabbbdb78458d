import re
from dataclasses import replace

import pytest

from tokengt.models.contract import Description
from tokengt.training.card import CardFacts, Fold, card_warnings, model_card
from tokengt.training.tasks import Task

NAN = float("nan")
FACTS = CardFacts(
    task=Task("regression", ("logSolubility",), None, (-3.0,), (2.0,)),
    level="graph",
    source="esol.csv.xz",
    sha256="ab" * 32,
    rows=1130,
    rejected=2,
    split="random, seed 0",
    counts={"train": 902, "valid": 113, "test": 113},
    train_labels=(902,),
    model=Description("TokenGT", "4 layers x 96", {"identifiers": "laplacian, 16 dimensions"}, ("graph-transformer",)),
    parameters=1234567,
    test={"rmse": 0.61234, "mae": 0.47, "r2": 0.91},
    floor={"rmse": 2.1, "mae": 1.7, "r2": -0.002},
    settings={"epochs": 30, "learning_rate": 1e-3},
    versions={"tokengt": "0.1.0", "torch": "2.13"},
    molecules=True,
    text_column="smiles",
)


def section(card: str, heading: str) -> str:
    return card.split(f"## {heading}\n\n")[1].split("\n\n## ")[0].strip()


def test_the_header_is_what_hugging_face_reads() -> None:
    header = model_card(replace(FACTS, source='a "b": c.csv')).split("---\n")[1]
    assert header.splitlines() == [
        "library_name: tokengt", "pipeline_tag: graph-ml",
        "tags:", "- tokengt", "- graph-transformer", "- chemistry", "- molecules", "- regression",
        "metrics:", "- rmse", "- mae", "- r2",
        r'training_file: "a \"b\": c.csv"',
    ]  # fmt: skip


def test_a_card_says_what_was_learned_from_what() -> None:
    card = model_card(FACTS)
    assert "Predicts for each molecule: `logSolubility` (numbers in the units of the training file" in card
    assert section(card, "Data").splitlines() == [
        "- File: `esol.csv.xz`, 1,130 rows, 2 rejected (`rejected.csv` in the store says which and why)",
        f"- SHA-256: `{'ab' * 32}`",
        "- Split: random, seed 0; 902 train, 113 valid, 113 test",
        "- Training labels: `logSolubility` 902",
    ]
    assert section(card, "Training").splitlines()[2:] == [
        "| identifiers | laplacian, 16 dimensions |",
        "| parameters | 1,234,567 |",
        "| epochs | 30 |",
        r"| learning\_rate | 0.001 |",
        "",
        "Made with tokengt 0.1.0, torch 2.13.",
    ]
    assert "tokengt predict RUN new.csv --out out.csv" in section(card, "Use")
    assert 'tokengt.load(RUN).predict(["CCO", "c1ccccc1O"])' in section(card, "Use")
    assert "the column `smiles`" in section(card, "Use")
    assert "Nothing is claimed outside that chemistry" in section(card, "Intended use and limits")
    assert section(card, "Warnings") == "None found."
    assert not re.search(r"20\d\d-\d\d|/tmp|/home", card)


def test_a_linear_model_on_fingerprints_stands_beside_the_model() -> None:
    linear = {"rmse": 0.8, "mae": 0.6, "r2": 0.85}
    card = model_card(replace(FACTS, linear=linear))
    assert section(card, "Test").splitlines()[:3] == [
        "| metric | test | linear | floor |",
        "| --- | --- | --- | --- |",
        "| rmse | 0.6123 | 0.8 | 2.1 |",
    ]
    assert "Linear is a linear model on fingerprints: ridge regression" in card
    assert card_warnings(replace(FACTS, linear=linear)) == []
    (warning,) = card_warnings(replace(FACTS, linear={**linear, "rmse": 0.5}))
    assert warning.startswith(
        "On the test part a linear model on fingerprints is better than this model (rmse 0.5 against"
    )


def test_metrics_stand_beside_the_floor() -> None:
    assert section(model_card(FACTS), "Test").splitlines() == [
        "| metric | test | floor |",
        "| --- | --- | --- |",
        "| rmse | 0.6123 | 2.1 |",
        "| mae | 0.47 | 1.7 |",
        "| r2 | 0.91 | -0.002 |",
        "",
        "The floor predicts the mean of the training labels for everything.",
    ]
    assert "| rmse | 0.6123 |\n" in section(model_card(replace(FACTS, floor=None)), "Test")
    assert section(model_card(replace(FACTS, test=None)), "Test").startswith("No test part was held out")


def test_hits_among_too_few_negatives_are_explained() -> None:
    test = {"roc_auc": 0.9, "mrr": 0.5, "hits@10": 0.75, "hits@50": NAN, "hits@100": NAN}
    task = Task("binary", ("link",), links=True)
    lines = section(model_card(replace(FACTS, task=task, level="link", test=test, floor=None)), "Test").splitlines()
    assert lines[4:7] == ["| hits@10 | 0.75 |", "| hits@50 | undefined |", "| hits@100 | undefined |"]
    assert "hits@50, hits@100: undefined with fewer negatives than that, where every link would be a hit." in lines
    assert "undefined" not in section(model_card(FACTS), "Test")


def test_several_targets_have_a_row_each() -> None:
    task = Task("binary", ("a|b", "c"))
    test = {"roc_auc": 0.75, "accuracy": 0.5, "roc_auc/c": 0.75, "accuracy/a|b": 1.0, "accuracy/c": 0.0}
    card = model_card(replace(FACTS, task=task, train_labels=(902, 900), test=test, floor={"roc_auc": NAN}))
    lines = section(card, "Test").splitlines()
    assert lines[2:4] == ["| roc_auc | 0.75 | undefined |", "| accuracy | 0.5 | undefined |"]
    assert lines[-3:] == ["| --- | --- | --- |", r"| `a\|b` |  | 1 |", "| `c` | 0.75 | 0 |"]
    assert "not calibrated" in section(card, "Intended use and limits")


def test_how_several_targets_are_averaged_is_said() -> None:
    two = {"rmse": 1.5, "rmse/a": 1.0, "rmse/b": 2.0}
    task = Task("regression", ("a", "b"), None, (0.0, 0.0), (1.0, 1.0))
    card = model_card(replace(FACTS, task=task, train_labels=(902, 902), test=two, floor=None))
    assert "averaged over the targets, so that rmse is a mean of RMSEs and not one over all labels;" in card
    bits = replace(FACTS, task=Task("binary", ("a", "b")), train_labels=(902, 902), test={"roc_auc": 0.5}, floor=None)
    assert "averaged over the targets; an empty cell" in model_card(bits)
    assert "averaged over" not in model_card(FACTS)


FOLDS = (
    Fold({"train": 20, "valid": 10, "test": 10}, (19,)),
    Fold({"train": 20, "valid": 10, "test": 10}, (18,)),
    Fold({"train": 19, "valid": 10, "test": 11}, (19,)),
)


def test_folds_are_told_as_folds() -> None:
    """Neither the parts nor the labels of the first fold stand for the run, and their spread is there."""
    alone = ({"rmse": 1.0, "r2": NAN}, {"rmse": 2.0, "r2": 0.5}, {"rmse": 3.0, "r2": NAN})
    facts = replace(
        FACTS, split="3 folds, random, seed 0", folds=FOLDS, alone=alone, members=3, train_labels=(18,), shared=2
    )
    card = model_card(facts)
    assert section(card, "Data").splitlines()[2:] == [
        "- Split: 3 folds, random, seed 0; 19 to 20 train, 10 valid, 10 to 11 test in each fold",
        "- Training labels in each fold: `logSolubility` 18 to 19",
    ]
    lines = section(card, "Test").splitlines()
    assert lines[0] == "| metric | test | a single model | floor |"
    assert lines[2] == "| rmse | 0.6123 | 2 ± 1 | 2.1 |"
    assert lines[4] == "| r2 | 0.91 | undefined | -0.002 |"
    assert "Every row is a test row of one of the 3 folds, predicted by models of that fold." in lines
    assert "A single model: mean ± standard deviation over the 3 models, each on the test part of its fold." in lines
    assert "more than one part of the first fold: 2" in section(card, "Warnings")
    assert "`logSolubility` has only 18 training labels" in section(card, "Warnings")


def test_graphs_in_memory_have_no_file_but_a_checksum() -> None:
    card = model_card(replace(FACTS, source=None, rejected=0, molecules=False, rows=40))
    assert section(card, "Data").splitlines()[:2] == [
        "- Graphs in memory: 40",
        f"- SHA-256 of their packed arrays and labels: `{'ab' * 32}`",
    ]
    assert 'training_file: "in memory"' in card


def test_classes_and_ensembles_and_graphs() -> None:
    task = Task("multiclass", ("kind",), ("x", "`y`"))
    card = model_card(replace(FACTS, task=task, test=None, molecules=False, level="node", members=5, text_column=None))
    assert "Predicts for each node: `kind` (a probability for each class)." in card
    assert "Classes: `x`, `` `y` ``." in card
    assert "mean of 5 models" in card
    assert "predict(graphs)" in card
    assert "chemistry" not in card


def test_descriptors_are_asked_for() -> None:
    card = model_card(replace(FACTS, descriptors=("pH", "T")))
    assert "needs its molecules in the column `smiles` and the numbers `pH`, `T`." in card


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shared": 3}, "Molecules that stand in more than one part of the split: 3; the metrics flatter the model."),
        ({"unseen_elements": {"Se": 1}}, "Se occurs in 1 molecule of the other parts but in none of training."),
        ({"train_labels": (99,)}, "`logSolubility` has only 99 training labels."),
        ({"test": {"rmse": 2.1}}, "On the test part this model is no better than the floor (rmse): do not use it."),
        ({"test": {"rmse": NAN}}, "The test part cannot tell how good this model is: rmse is not defined there."),
        ({"notes": ("Two epochs only.",)}, "Two epochs only."),
    ],
)
def test_each_warning_is_a_sentence(change: dict[str, object], sentence: str) -> None:
    facts = replace(FACTS, **change)  # type: ignore[arg-type]
    assert card_warnings(facts) == [sentence]
    assert section(model_card(facts), "Warnings") == f"- {sentence}"


def test_a_hundred_labels_are_enough_for_no_warning() -> None:
    assert card_warnings(replace(FACTS, train_labels=(100,))) == []


def test_a_model_of_logarithms_is_judged_by_absolute_errors() -> None:
    """One label of a thousand hours decides the squared error of half-lives, whatever is said of all others."""
    task = replace(FACTS.task, log_mean=(1.0,), log_scale=(1.0,))
    test, floor = {"rmse": 29.8, "mae": 11.5}, {"rmse": 29.5, "mae": 16.6}
    assert card_warnings(replace(FACTS, task=task, test=test, floor=floor, linear=None)) == []
    (warning,) = card_warnings(replace(FACTS, task=task, test={**test, "mae": 17.0}, floor=floor, linear=None))
    assert warning == "On the test part this model is no better than the floor (mae): do not use it."
    assert task.judged == "mae"
    assert replace(task, metric="spearman").judged == "spearman"
    assert FACTS.task.judged == "rmse"
