"""A store of pre-training data to weights that fine-tuning begins with, by the one training loop that there is."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.config import near, override, read_json, to_dict
from tokengt.data.batching import evaluation_batches
from tokengt.data.facts import fact_of_all
from tokengt.data.splits import random_split
from tokengt.files import checksum, folder_lock, write_whole
from tokengt.models.contract import Model, check_sizes
from tokengt.models.pretrained import CONFIG, WEIGHTS, write_model
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.masking import HIDDEN, HIDING, MaskedAtoms
from tokengt.models.tokengt.model import TokenGT
from tokengt.presets import PRESETS
from tokengt.pretraining.assays import slot_table
from tokengt.pretraining.card import card
from tokengt.pretraining.objectives import STRUCTURE, TARGETS, Layout, Objectives
from tokengt.pretraining.quantise import MISSING
from tokengt.pretraining.store import Manifest, graph_arrays, read_arrays, read_manifest
from tokengt.training.config import TrainingConfig
from tokengt.training.floor import WIDTH, fingerprints
from tokengt.training.loop import Trainer
from tokengt.training.parts import cut
from tokengt.training.processes import Device, DeviceConfig, make_fabric, without_precision_advice
from tokengt.training.progress import Progress
from tokengt.training.results import write_metrics

RUN, CARD = "pretrained.json", "README.md"
# Molecules whose fingerprints are worked out at once, counted in atoms and bonds.
_CHUNK = 1 << 18
_VALID = (0.98, 0.02, 0.0)
# One pass over many molecules teaches more than many passes over few; large steps suit a GPU.
RECIPE = TrainingConfig(epochs=12, batch_size=512, learning_rate=2e-3, warmup=0.05)


@dataclass(frozen=True)
class PretrainRequest:
    """What to learn, and how.

    Args:
        targets: names in :data:`TARGETS`.
        preset: a TokenGT among ``tokengt presets``.
        settings: ``{"model.dim": 256, "training.epochs": 20}`` and the like.
        seed: of the split, the weights and training.
        weights: how much each objective counts, by the names that the metrics have; 1 where nothing is said.
    """

    targets: tuple[str, ...] = TARGETS
    preset: str = "small"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError(f"there is nothing to learn; expected targets among {', '.join(TARGETS)}")
        for name in self.targets:
            if name == STRUCTURE:
                raise ValueError(f"the target {STRUCTURE} is learned alone; got {', '.join(self.targets)}")
            if name not in TARGETS:
                raise ValueError(
                    f"the target {name!r} is unknown{near(name, (*TARGETS, STRUCTURE))}; expected some of "
                    f"{', '.join(TARGETS)}, or {STRUCTURE} alone"
                )
        if self.preset not in PRESETS:
            known = [name for name, make in PRESETS.items() if isinstance(make(), TokenGTConfig)]
            raise ValueError(
                f"preset {self.preset!r} is unknown{near(self.preset, known)}; expected one of {', '.join(known)}"
            )
        for path in self.settings:
            if path.partition(".")[0] not in ("model", "training") or "." not in path:
                raise ValueError(f"setting {path!r} is unknown; expected model.FIELD=VALUE or training.FIELD=VALUE")
        _ = self.training
        check_sizes(self.config)

    @property
    def training(self) -> TrainingConfig:
        return override(RECIPE, self._inside("training."), "training")

    @property
    def config(self) -> TokenGTConfig:
        """The model that fine-tuning will begin with; its head is a new one then."""
        config = PRESETS[self.preset]()
        if not isinstance(config, TokenGTConfig):
            raise ValueError(f"preset {self.preset!r} is a {config.kind}; expected a TokenGT, such as small")
        config = override(config, self._inside("model."), "model")
        if config.head.level != "graph":
            raise ValueError(f"preset {self.preset!r} predicts for a {config.head.level}; expected one for graphs")
        return replace(config, head=replace(config.head, out_dim=1))

    def _inside(self, start: str) -> dict[str, Any]:
        return {path.removeprefix(start): value for path, value in self.settings.items() if path.startswith(start)}

    def described(self) -> dict[str, Any]:
        """What a run depends on, so that no other one goes on with its checkpoints."""
        training = {
            name: value
            for name, value in to_dict(self.training).items()
            if name not in ("cuda_graphs", "checkpoint_seconds", "memory", "recompute")
        }
        return {
            "targets": list(self.targets),
            "preset": self.preset,
            "model": to_dict(self.config),
            "training": training,
            "seed": self.seed,
            "weights": dict(self.weights),
        }


@without_precision_advice()
def pretrain_run(
    store: Path, out: Path, request: PretrainRequest, *, device: Device = "auto", quiet: bool = False
) -> dict[str, Any]:
    """Train and write the folder ``out``: a saved model for ``finetune``, a card, what was measured.

    The same call goes on where one was stopped, and returns what a finished one has measured.

    Raises:
        ValueError: one sentence: the store or the request is wrong, or the folder holds something else.
    """
    manifest = read_manifest(store)
    asked = request.described() | {"store": manifest.sha256}
    with folder_lock(out, lambda: _refuse_taken(out)):
        done = _begun(out, asked)
        if done is not None:
            return done
        fabric = make_fabric(DeviceConfig(device), request.training.precision)
        objectives, trainer, model = _trainer(fabric, store, manifest, request, out, asked, quiet)
        if fabric.device.type == "cuda" and not quiet:
            print(trainer.how, file=sys.stderr)
        state = trainer.run(resume=True)
        _write_start(out, request.config, model)
        summary = {
            **asked,
            "store": manifest.sha256,
            "molecules": manifest.count,
            "excluded": manifest.excluded,
            "excluded_keys": manifest.excluded_keys,
            "excluded_sha256": manifest.excluded_sha256,
            "objectives": {name: round(value, 4) for name, value in objectives.expected.items()},
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "valid": state.records[state.best_epoch - 1].get("valid", {}),
        }
        write_whole(out / CARD, card(manifest, summary).encode())
        # Written last: it is what says that the run is finished.
        write_whole(out / RUN, json.dumps(summary, indent=2).encode() + b"\n")
        for old in (out / "checkpoints").iterdir():
            old.unlink()
        (out / "checkpoints").rmdir()
    return summary


def _refuse_taken(out: Path) -> None:
    raise ValueError(f"another training is at work in {out}; wait for its end, or choose another folder")


def _begun(out: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """What a finished run has measured; None where there is something to do, after writing down what is asked for."""
    plain = json.loads(json.dumps(asked))
    file = out / "asked.json"
    if file.is_file():
        before = read_json(file)
        changed = [name for name in plain if before.get(name) != plain[name]]
        if changed:
            raise ValueError(
                f"{out} was begun with another {' and '.join(changed)}; give what it was begun with, or choose another "
                "folder"
            )
        return read_json(out / RUN) if (out / RUN).is_file() else None
    ours = {"store"}
    if out.exists() and any(each.name not in ours for each in out.iterdir() if not each.name.startswith(".")):
        raise ValueError(f"{out} exists and holds other files; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(plain, indent=2).encode() + b"\n")
    return None


def _trainer(
    fabric: Any,
    store: Path,
    manifest: Manifest,
    request: PretrainRequest,
    out: Path,
    asked: dict[str, Any],
    quiet: bool,
) -> tuple[Objectives, Trainer, Model]:
    arrays = read_arrays(store, manifest)
    graphs = graphs_of(arrays)
    layout = layout_of(manifest, request.targets)
    for fact in request.config.facts():
        graphs = graphs.with_fact(fact.name, fact_of_all(graphs, fact, shown=not quiet), fact.per)
    table = table_of(arrays, graphs, layout)
    split = random_split(len(graphs), request.seed, _VALID)
    if not len(split.train):
        raise ValueError(f"{store} holds {len(graphs)} molecules, too few to train on; expected two at least")
    hidden = HIDDEN * HIDING * len(graphs.nodes.ids) / len(graphs)
    objectives = Objectives.fit(layout, table[split.train], hidden, request.weights)
    if not objectives.expected:
        raise ValueError(
            f"{store} holds nothing to learn for the targets {', '.join(request.targets)}; expected other targets, or "
            "a store with labels"
        )
    torch.manual_seed(request.seed)
    model = model_of(request.config, layout)
    parts = cut(graphs, table, "graph", split, by_row=False, costs=model.costs(graphs))
    trainer = Trainer(
        fabric,
        model,
        parts,
        objectives,
        request.training,
        seed=request.seed,
        folder=out,
        fingerprint=checksum(json.dumps(asked, sort_keys=True).encode()),
        progress=Progress(request.training.epochs, quiet, "pre-training"),
        on_epoch=lambda records: write_metrics(out, records),
        warn=lambda sentence: None if quiet else print(sentence, file=sys.stderr),
    )
    return objectives, trainer, model


def layout_of(manifest: Manifest, targets: tuple[str, ...]) -> Layout:
    """Which labels of a store are learned."""
    assays = "assays" in targets
    return Layout(
        bits=WIDTH if "fingerprints" in targets else 0,
        descriptors=len(manifest.descriptors) if "descriptors" in targets else 0,
        numbers=len(manifest.numbers) if assays else 0,
        answers=len(manifest.answers) if assays else 0,
        assays=len(manifest.assays) if assays else 0,
        masked="masked" in targets,
    )


def model_of(config: TokenGTConfig, layout: Layout) -> Model:
    """With a head for every label, and atoms hidden from it if it is to guess them."""
    model = TokenGT(replace(config, head=replace(config.head, out_dim=layout.head)))
    return MaskedAtoms(model) if layout.masked else model


def graphs_of(arrays: Mapping[str, NDArray[Any]]) -> GraphBatch:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in graph_arrays(arrays).items()}
    return GraphBatch.from_arrays(tensors)


def table_of(arrays: Mapping[str, NDArray[Any]], graphs: GraphBatch, layout: Layout) -> Float[Tensor, "graphs columns"]:
    """All labels as codes, in float16, which holds whole numbers up to 2,048 exactly."""
    count = len(graphs)
    parts = [np.zeros((count, 1), np.uint8)]
    if layout.bits:
        parts.append(_bits(graphs, layout.bits))
    if layout.descriptors:
        described = arrays["described"].astype(bool)
        codes = np.full((count, layout.descriptors), MISSING, np.uint8)
        codes[described] = arrays["descriptors"]
        parts.append(codes)
    parts += [arrays["numbers"]] if layout.numbers else []
    parts += [arrays["answers"]] if layout.answers else []
    parts += [slot_table(arrays)] if layout.assays else []
    out = torch.empty(count, layout.columns, dtype=torch.float16)
    first = 0
    for part in parts:
        out[:, first : first + part.shape[1]] = torch.from_numpy(np.ascontiguousarray(part))
        first += part.shape[1]
    return out


def _bits(graphs: GraphBatch, width: int) -> NDArray[np.uint8]:
    """[graphs, width / 8] which neighbourhoods each graph has, eight bits to a byte."""
    out = np.zeros((len(graphs), width // 8), np.uint8)
    sizes = graphs.nodes.host_lengths + graphs.edges.host_lengths
    for chunk in evaluation_batches(torch.arange(len(graphs)), sizes, _CHUNK):
        out[chunk.numpy()] = np.packbits((fingerprints(graphs.select(chunk), width) > 0).numpy(), axis=1)
    return out


def _write_start(out: Path, config: TokenGTConfig, trained: nn.Module) -> None:
    """The encoder, under a head of zeros: who begins with it brings a new one."""
    model = trained.model if isinstance(trained, MaskedAtoms) else trained
    start = TokenGT(config)
    encoder = {name: value.cpu() for name, value in model.state_dict().items() if not name.startswith("head.")}
    start.load_state_dict(start.state_dict() | encoder)
    for weight in start.head.parameters():
        nn.init.zeros_(weight)
    write_model(out, to_dict(config), start.state_dict())


def is_pretrained(folder: Path) -> bool:
    """Whether the folder holds a finished pre-training."""
    return all((folder / name).is_file() for name in (RUN, CONFIG, WEIGHTS))
