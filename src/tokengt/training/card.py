"""The model card of a run: what was learned from which data, how well, and where it stops.

The card compares every metric with its floor: the score of a predictor that knows nothing but the training labels.
The same facts give the same bytes, so that a card can be compared with an older one.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from tokengt.models.contract import Description
from tokengt.training.reliability import Reliability
from tokengt.training.tasks import Task, hits_at

FEW_LABELS = 100
LINEAR = "a linear model on fingerprints"
# What a model and the forest beside it say by themselves, as the summary names them.
MODEL, FOREST = "model", "forest"
_HEADINGS = {
    "regression": "numbers in the units of the training file, which the file does not name",
    "binary": "the probability of a 1",
    "multiclass": "a probability for each class",
}


@dataclass(frozen=True)
class Fold:
    """One fold of a cross-validation: rows of each part, and training labels of each target."""

    counts: Mapping[str, int]
    train_labels: tuple[int, ...]


@dataclass(frozen=True)
class CardFacts:
    """All that a card says, in plain values.

    Args:
        task: what is predicted.
        level: what a prediction is made for: a "graph" (a molecule, when ``molecules``), a "node" or an "edge".
        source: name of the data file, without its folder; None for graphs that were in memory.
        sha256: its checksum; for graphs in memory that of their packed arrays.
        rows: how many records it holds.
        rejected: how many of them could not be read.
        unit: what they are, such as "row" or "graph".
        tables: whether it was a table of nodes and one of edges.
        split: how the parts were made, in words, such as "random, seed 0" or "by the column `set`".
        counts: rows of each part, such as ``{"train": 902, "valid": 113, "test": 113}``.
        train_labels: training labels of each target, in the order of ``task.names``; of folds, the fewest.
        folds: of a cross-validation, its folds; ``counts`` then say nothing.
        alone: metrics of each model of several on its own test part.
        model: the model in words: its name, and rows for the table of settings.
        parameters: trained numbers in one model.
        test: metrics on the test part, if it has rows.
        floor: the same metrics of ``task.floor``, which knows nothing but the training labels.
        linear: the same metrics of a linear model on fingerprints, where there is one.
        apart: those of the model and of the forest beside it by themselves, where there is one.
        settings: the training settings that matter, by name.
        versions: programs by name, such as ``{"tokengt": "0.1.0", "torch": "2.13"}``.
        molecules: whether the data are molecules.
        text_column: molecules: the column that holds them.
        descriptors: extra numeric columns that a new file must have as well.
        members: models whose predictions are averaged.
        shared: graphs that stand in more than one part.
        unseen_elements: elements of the validation and test parts that training never saw: molecules that hold them.
        notes: further warnings, one sentence per warning.
        reliability: how far the predictions of the test part were to be trusted.
    """

    task: Task
    level: str
    source: str | None
    sha256: str
    rows: int
    rejected: int
    split: str
    counts: Mapping[str, int]
    train_labels: tuple[int, ...]
    model: Description
    parameters: int
    test: Mapping[str, float] | None = None
    floor: Mapping[str, float] | None = None
    linear: Mapping[str, float] | None = None
    apart: Mapping[str, Mapping[str, float]] | None = None
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    unit: str = "row"
    tables: bool = False
    molecules: bool = False
    text_column: str | None = None
    descriptors: tuple[str, ...] = ()
    members: int = 1
    folds: tuple[Fold, ...] = ()
    alone: tuple[Mapping[str, float], ...] = ()
    shared: int = 0
    unseen_elements: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reliability: Reliability = field(default_factory=Reliability)


def model_card(facts: CardFacts) -> str:
    """Markdown with the YAML header that Hugging Face reads."""
    names = facts.task.names
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    sections = [
        f"{_header(facts)}\n\n# {_plain(facts.model.name)} for {_plain(title)}",
        _predicted(facts),
        f"## Test\n\n{_results(facts)}",
        f"## Uncertainty\n\n{_uncertainty(facts)}",
        f"## Warnings\n\n{_bullets(card_warnings(facts))}",
        f"## Data\n\n{_data(facts)}",
        f"## Use\n\n{_use(facts)}",
        f"## Intended use and limits\n\n{_limits(facts)}",
        f"## Training\n\n{_training(facts)}",
    ]
    return "\n\n".join(sections) + "\n"


def card_warnings(facts: CardFacts) -> list[str]:
    """What a reader must know before trusting the numbers, one sentence per warning."""
    warnings = []
    thing = _thing(facts)
    metric = facts.task.judged
    split = "the split" if not facts.folds else "the first fold"
    if facts.test and math.isnan(facts.test[metric]):
        warnings.append(f"The test part cannot tell how good this model is: {metric} is not defined there.")
    elif facts.test and facts.floor and not facts.task.is_better(facts.test[metric], facts.floor.get(metric)):
        warnings.append(f"On the test part this model is no better than the floor ({metric}): do not use it.")
    elif facts.test and facts.linear and facts.task.is_better(facts.linear[metric], facts.test[metric]):
        warnings.append(
            f"On the test part {LINEAR} is better than this model ({metric} {_number(facts.linear[metric])} against "
            f"{_number(facts.test[metric])}): try a simpler model, other settings or more data."
        )
    if facts.shared:
        things = "Molecules" if facts.molecules else "Graphs"
        warnings.append(
            f"{things} that stand in more than one part of {split}: {facts.shared:,}; the metrics flatter the model."
        )
    for element, count in facts.unseen_elements.items():
        where = "training" if not facts.folds else "training in the first fold"
        warnings.append(f"{element} occurs in {counted(count, thing)} of the other parts but in none of {where}.")
    for name, labels in zip(facts.task.names, facts.train_labels, strict=True):
        if labels < FEW_LABELS:
            warnings.append(f"{_code(name)} has only {counted(labels, 'training label')}.")
    return [*warnings, *facts.notes]


def censored_notes(censored: Mapping[str, int], learned: bool = False) -> tuple[str, ...]:
    """What a reader must know of targets for which so many rows had a bound such as ``>3.69`` and no number."""
    if learned:
        what = "which were learned from as bounds; metrics, intervals and pictures leave them out"
    else:
        what = (
            "which were left out: values beyond the bounds are missing from training and test, and predictions are "
            "biased away from them; `--censored learn` learns from bounds"
        )
    return tuple(
        f"{_code(name)} was a bound such as `>3.69` and no number in {counted(count, 'row')}, {what}."
        for name, count in censored.items()
        if count
    )


def _header(facts: CardFacts) -> str:
    task = facts.task
    kind = "regression" if task.kind == "regression" else "classification"
    tags = ["tokengt", *facts.model.tags, *(["chemistry", "molecules"] if facts.molecules else []), kind]
    metrics = [name for name in facts.test or () if "/" not in name] or [task.metric]
    lines = ["---", "library_name: tokengt", "pipeline_tag: graph-ml"]
    for key, values in (("tags", tags), ("metrics", metrics)):
        lines += [f"{key}:", *(f"- {value}" for value in values)]
    # A file name may hold quotes or colons, which YAML would misread; every JSON string is a valid YAML string.
    return "\n".join([*lines, f"training_file: {json.dumps(facts.source or 'in memory', ensure_ascii=False)}", "---"])


def _predicted(facts: CardFacts) -> str:
    task = facts.task
    lines = [f"Predicts for each {_thing(facts)}: {', '.join(map(_code, task.names))} ({_HEADINGS[task.kind]})."]
    if task.classes is not None:
        lines.append(f"Classes: {', '.join(map(_code, task.classes))}.")
    if facts.members > 1:
        lines.append(f"A prediction is the mean of {facts.members} models.")
    return "\n".join(lines)


def _results(facts: CardFacts) -> str:
    if not facts.test:
        return "No test part was held out, so nothing is known about new data."
    means = [name for name in facts.test if "/" not in name]
    floor = facts.floor or {}
    columns = {"test": [_number(facts.test[name]) for name in means]}
    if facts.alone:
        columns["a single model"] = [_spread([scores.get(name) for scores in facts.alone]) for name in means]
    several = "s" if facts.alone else ""
    apart = [(f"{name}{several * (name == MODEL)} alone", values) for name, values in (facts.apart or {}).items()]
    for beside, values in (*apart, ("linear", facts.linear), ("floor", floor)):
        if values:
            columns[beside] = [_number(values.get(name)) for name in means]
    parts = [_table(["metric", *columns], list(zip(means, *columns.values(), strict=True)))]
    blank = [name for name in means if hits_at(name) is not None and math.isnan(facts.test[name])]
    if blank:
        parts.append(f"{', '.join(blank)}: undefined with fewer negatives than that, where every link would be a hit.")
    if facts.folds:
        parts.append(
            f"Every row is a test row of one of the {len(facts.folds)} folds, predicted by models of that fold."
        )
    if facts.alone:
        part = "the test part of its fold" if facts.folds else "the test part"
        parts.append(f"A single model: mean ± standard deviation over the {len(facts.alone)} models, each on {part}.")
    if facts.apart:
        parts.append(
            f"A prediction is a mean of what the model{several} and a random forest say, which was grown on the "
            "descriptors that a model's head reads. The validation part gave the forest its share, and then the forest "
            "was grown anew from training and validation rows; intervals were measured with the first one."
        )
    if facts.linear:
        how = "ridge regression" if facts.task.kind == "regression" else "logistic regression"
        parts.append(
            f"Linear is {LINEAR}: {how} on counts of atoms with their neighbours up to two bonds away, fitted to the "
            "same training part."
        )
    if floor:
        what = "mean of the training labels" if facts.task.kind == "regression" else "frequencies in training"
        parts.append(f"The floor predicts the {what} for everything.")
    if len(facts.task.names) > 1:
        averaged = (
            ", so that rmse is a mean of RMSEs and not one over all labels" if facts.task.kind == "regression" else ""
        )
        parts.append(
            f"Each metric is worked out for every target and then averaged over the targets{averaged}; an empty "
            "cell has too few labels for its metric."
        )
        keys = [[_code(n), *(_number(facts.test.get(f"{m}/{n}"), "") for m in means)] for n in facts.task.names]
        parts.append(_table(["target", *means], keys))
    return "\n\n".join(parts)


def _uncertainty(facts: CardFacts) -> str:
    found, rows = facts.reliability, "rows like those of the validation part, which set them"
    if found.intervals is not None:
        told = found.intervals
        logs = " (of their logarithms, where those are learned)" if facts.task.logged else ""
        table = _table(
            ["90% intervals on the test part", "", "ideal"],
            [
                ["share of labels inside", f"{told.coverage:.1%}", f"{told.level:.0%}"],
                [f"mean width, in deviations of the training labels{logs}", _number(told.width), "small"],
                ["rank correlation of width and absolute error", f"{told.rank_correlation:.2f}", "1"],
            ],
        )
        other = "other chemistry" if facts.molecules else "other graphs"
        how = (
            "`tokengt predict --interval 0.9` adds the columns `low_` and `high_`. They hold for "
            f"{rows}: expect less on {other} or another laboratory. Wide ones are where errors were large: far "
            "from the training data, where its labels differ, or where the model disagrees with its neighbours."
        )
        return f"{table}\n\n{how} The picture is `calibration.png`."
    if found.chances is not None:
        told_chances = found.chances
        return (
            f"Probabilities are calibrated: on the test part they are off by {_number(told_chances.error)} on average "
            f"(as the model says them: {_number(told_chances.before)}; ten bins). They hold for {rows}. The picture is "
            "`calibration.png`."
        )
    return "Nothing is known: the validation part has too few labels, or there is no test part to tell it on."


def _data(facts: CardFacts) -> str:
    rejected = f"{facts.rejected:,} rejected (`rejected.csv` in the store says which and why)"
    file = f"File: {_code(facts.source or '')}, {counted(facts.rows, facts.unit)}, "
    file += rejected if facts.rejected else "none rejected"
    folds = facts.folds or (Fold(facts.counts, facts.train_labels),)
    parts = ", ".join(f"{_range([fold.counts[name] for fold in folds])} {name}" for name in folds[0].counts)
    labels = [
        f"{_code(name)} {_range([fold.train_labels[place] for fold in folds])}"
        for place, name in enumerate(facts.task.names)
    ]
    each = " in each fold" if facts.folds else ""
    return _bullets(
        [
            file if facts.source is not None else f"Graphs in memory: {facts.rows:,}",
            f"SHA-256{'' if facts.source is not None else ' of their packed arrays and labels'}: `{facts.sha256}`",
            f"Split: {facts.split}; {parts}{each}",
            f"Training labels{each}: {', '.join(labels)}",
        ]
    )


def new_tables(level: str) -> str:
    """How a person names the tables of a graph to predict, on the command line."""
    return "--nodes NODES.csv --edges EDGES.csv" + (" --pairs PAIRS.csv" if level == "link" else "")


def _use_tables(facts: CardFacts) -> str:
    """How predictions are asked for where the graph is a table of nodes and one of edges."""
    pairs = ', pairs="PAIRS.csv"' if facts.level == "link" else ""
    return (
        f"```bash\ntokengt predict RUN {new_tables(facts.level)} --out out.csv\n```\n\n"
        "```python\nfrom tokengt import NodeFiles\nfrom tokengt.workflow.predicting import predict_file\n\n"
        f'predict_file(RUN, NodeFiles("NODES.csv", "EDGES.csv"{pairs}), "out.csv")\n```\n\n'
        "`RUN` is the folder that holds this file. The tables need the ids and features that those of training had; "
        "labels may be left out."
    )


def _use(facts: CardFacts) -> str:
    if facts.tables and facts.model.own_class is None:
        return _use_tables(facts)
    example = '["CCO", "c1ccccc1O"]' if facts.molecules else "graphs"
    example += ", descriptors=numbers" if facts.descriptors else ""
    file = "new.csv" if facts.molecules else "new.pt"
    needs = []
    if facts.text_column is not None:
        needs.append(f"its molecules in the column {_code(facts.text_column)}")
    if facts.descriptors:
        needs.append(f"the numbers {', '.join(map(_code, facts.descriptors))}")
    own = facts.model.own_class
    load = "tokengt.load(RUN)" if own is None else f"tokengt.load(RUN, model={own}(...))"
    where = "`RUN` is the folder that holds this file."
    where += f" `{own}` is the class of its author's own module, which these files do not hold." if own else ""
    where += f" The new file needs {' and '.join(needs)}." if needs else ""
    command = "" if own else f"```bash\ntokengt predict RUN {file} --out out.csv\n```\n\n"
    return f"{command}```python\nimport tokengt\n\n{load}.predict({example})\n```\n\n{where}"


def _limits(facts: CardFacts) -> str:
    kin = "chemistry" if facts.molecules else "kind of graph"
    lines = [
        f"For {_thing(facts)}s like those of the training file. Nothing is claimed outside that {kin}: there a "
        "prediction may be far off and still look certain.",
        "The test metrics hold for data split as above. On data from another place, time or laboratory expect worse.",
        "The labels' own errors are learned with them; their units and quality are not known to this model.",
    ]
    if facts.task.kind != "regression":
        calibrated = "" if facts.reliability.chances is not None else "Probabilities were not calibrated; "
        lines.append(f"{calibrated}{'c' if calibrated else 'C'}hoose a threshold on data of your own.")
    if facts.molecules:
        lines.append("Not for decisions about safety, dose or treatment without measurements.")
    return _bullets(lines)


def _training(facts: CardFacts) -> str:
    details = [[_plain(name), _plain(value)] for name, value in facts.model.details.items()]
    settings = [*details, ["parameters", f"{facts.parameters:,}"]]
    settings += [[_plain(name), _plain(str(value))] for name, value in facts.settings.items()]
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return _table(["setting", "value"], settings) + (f"\n\nMade with {versions}." if versions else "")


def _thing(facts: CardFacts) -> str:
    return "molecule" if facts.molecules and facts.level == "graph" else facts.level


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in cells)} |" for cells in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) if lines else "None found."


def _number(value: float | None, missing: str = "undefined") -> str:
    return missing if value is None or math.isnan(value) else f"{value:.4g}"


def _spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation of the values that are defined."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if len(known) < 2:
        return "undefined"
    return f"{mean(known):.4g} ± {stdev(known):.2g}"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def counted(number: int, thing: str) -> str:
    """How many of a thing there are: "1 row", "2 rows"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _plain(text: str) -> str:
    """A user's words as one line without markup."""
    text = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#" else letter for letter in text)


def _code(text: str) -> str:
    """A user's words as a code span; two backticks hold one."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"
