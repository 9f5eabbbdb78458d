"""What single choices of TokenGT bring, in small models and short trainings on a CPU: paired differences over seeds.

    TOKENGT_DATA=... python benchmarks/choices.py proof-heads        # goes on where a stopped one was
    TOKENGT_DATA=... python benchmarks/choices.py regularisers --seeds 1

``proof-heads``: heads that begin as the proof's maps, with and without masked layers, on ZINC-12k. ``regularisers``:
TokenGT (Lap) with and without random signs and eigenvector dropout, on molecules of PubChem. All systems of a study are
the same encoder below 500,000 parameters, trained on the same graphs for as many epochs; seeds differ in weights and
order alone. Trainings are cells of ``tokengt compare`` under ``build/STUDY``. Writes ``table.json`` and ``table.md`` to
``results/STUDY``: the validation part is for choosing, the test part is told beside it.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import tokengt
from tokengt.data.manifest import Recipe
from tokengt.data.public import public_data
from tokengt.data.store import Store
from tokengt.experiments.tables import TableRow, device_name, markdown, mean_and_std, source_commit, write_rows
from tokengt.files import write_whole
from tokengt.training.resolve import policy_of
from tokengt.training.results import METRICS, read_summary
from tokengt.workflow.comparing_statistics import t_interval
from tokengt.workflow.inputs import open_data


@dataclass(frozen=True, eq=False)
class Study:
    """What is trained on, settings of all trainings, and those of ``model`` by system; the first is compared with."""

    dataset: str
    store: Callable[[Path], Store]
    common: Mapping[str, Any]
    systems: Mapping[str, Mapping[str, Any]]


def drawn(store: Store, parts: Sequence[int]) -> Store:
    """So many graphs of the training, the validation and the test part, drawn by seed 0."""
    assert store.split is not None
    generator = torch.Generator().manual_seed(0)
    rows = []
    for code, count in enumerate(parts):
        places = torch.nonzero(store.split == code).flatten()
        rows.append(places[torch.randperm(len(places), generator=generator)[:count]])
    chosen = torch.cat(rows)
    return Store.from_memory(
        store.graphs.select(chosen),
        store.targets[chosen],
        target_names=store.manifest.target_names,
        task="regression",
        policy=policy_of(store),
        split=store.split[chosen],
    )


def zinc(work: Path) -> Store:
    """2,000 training graphs of ZINC-12k, 500 of its validation part, and its test part."""
    return drawn(open_data("zinc12k", Recipe(), work / "store", quiet=True), (2000, 500, 1000))


def pubchem(work: Path) -> Store:
    """2,000 molecules with their HOMO-LUMO gaps: 1,500 for training, 200 for validation, 300 for the test."""
    file = public_data("molecules") / "pubchem_b3lyp_gap.csv.xz"
    recipe = Recipe(targets=("homolumogap",))
    store = open_data(file, recipe, work.parent / f"{work.name}-store", workers=1, quiet=True)
    codes = torch.full((len(store),), -1, dtype=torch.int8)
    order = torch.randperm(len(store), generator=torch.Generator().manual_seed(0))
    for code, places in enumerate(order[:2000].split([1500, 200, 300])):
        codes[places] = code
    return drawn(replace(store, split=codes), (1500, 200, 300))


_SMALL = {"model.dim": 64, "model.encoder.num_layers": 4, "model.encoder.num_heads": 4, "model.encoder.mlp_dim": 128}
_HEADS, _MASK = {"proof_heads.layers": 4}, {"encoder.incidence": "alternate"}
_FLIPS, _DROPOUT = {"identifiers.sign_flip": "false"}, {"identifiers.dropout": 0.0}
STUDIES = {
    "proof-heads": Study(
        "zinc12k, 2,000 training graphs",
        zinc,
        {**_SMALL, "training.epochs": 12},
        {"lap": {}, "heads": _HEADS, "mask": _MASK, "mask-heads": {**_MASK, **_HEADS}},
    ),
    "regularisers": Study(
        "pubchem_b3lyp_gap, 1,500 training molecules",
        pubchem,
        {**_SMALL, "model.identifiers.dropout": 0.2, "training.epochs": 12},
        {"lap": {}, "no-flips": _FLIPS, "no-dropout": _DROPOUT, "neither": {**_FLIPS, **_DROPOUT}},
    ),
}


def errors(run: Path) -> dict[str, float]:
    """The best validation MAE of a run, the test MAE of that epoch, and the last training loss."""
    lines = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    test = read_summary(run).test
    assert test is not None
    return {"valid": min(line["valid"]["mae"] for line in lines), "test": test["mae"], "train": lines[-1]["train_loss"]}


def paired(values: Sequence[float], base: Sequence[float]) -> str:
    """The mean difference and its 95% interval (Student's t over seeds)."""
    found = t_interval([one - other for one, other in zip(values, base, strict=True)])
    return "" if found is None else f"{found.centre:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def told(values: Sequence[float]) -> str:
    mean, std = mean_and_std(values)
    return f"{mean:.3f}" + ("" if std is None else f" ± {std:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="default: build/STUDY")
    parser.add_argument("--out", type=Path, help="default: results/STUDY")
    options = parser.parse_args()
    study = STUDIES[options.study]
    work, out = options.work or Path("build") / options.study, options.out or Path("results") / options.study
    base, *_ = names = list(study.systems)
    own = {
        f"{name}:model.{path}": value for name, settings in study.systems.items() for path, value in settings.items()
    }
    comparison = tokengt.compare(
        study.store(work),
        work,
        dict.fromkeys(names, "small"),
        split="given",
        seeds=options.seeds,
        floors=False,
        reference=base,
        device="cpu",
        settings={**study.common, "training.loss": "mae", "training.metric": "mae", **own},
    )
    runs = {name: [work / "cells" / name / f"seed-{seed}" for seed in range(options.seeds)] for name in names}
    found = {name: [errors(run) for run in each] for name, each in runs.items()}
    rows, lines = [], []
    for name in names:
        parameters = round(comparison[name].average("parameters") or 0)
        line = [name, f"{parameters:,}"]
        for part in ("valid", "test"):
            values, others = ([each[part] for each in found[which]] for which in (name, base))
            line += [told(values), "" if name == base else paired(values, others)]
            mean, std = mean_and_std(values)
            rows.append(
                TableRow(
                    *(options.study, name, study.dataset, part, "mae", mean, std, len(values)),
                    parameters=parameters,
                    graphs_per_s=None,
                    device=device_name(torch.device("cpu")),
                    commit=source_commit(),
                    paper=None,
                )
            )
        lines.append([*line, told([each["train"] for each in found[name]])])
    header = [
        "system",
        "parameters",
        "valid MAE",
        f"against {base}",
        "test MAE",
        f"against {base}",
        "last training loss",
    ]
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", markdown(header, lines).encode())
    print(markdown(header, lines))


if __name__ == "__main__":
    main()
