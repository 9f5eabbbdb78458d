"""A prediction explained as one HTML file: ``tokengt explain``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokengt.data.datasets import find_run
from tokengt.explain.attributions import Method
from tokengt.explain.explanation import ATTRIBUTIONS, Explanation
from tokengt.explain.page.render import render
from tokengt.files import ready_to_write, write_whole
from tokengt.inference import Predictor
from tokengt.interop.pyg import as_batch
from tokengt.models.passes import Over
from tokengt.training.processes import Device
from tokengt.workflow.explaining import USUAL, explain

# A single pass is explained; so many more say how far other draws of the identifiers would lie from it.
_SPREAD_DRAWS = 8
# Where a run has more outputs (targets, classes) than this, the one that is asked for is explained alone.
_MOST_OUTPUTS = 8
# What has another answer for every output; attention is the same for all of them.
_PER_OUTPUT: tuple[Method, ...] = ("integrated_gradients", "occlusion")


@dataclass(frozen=True, eq=False)
class Report:
    """A page that was written, and the explanation that it shows first."""

    file: Path
    size: int
    explanation: Explanation

    def __str__(self) -> str:
        own = self.explanation
        what = f"chance of {own.outputs[own.output]}" if own.unit == "probability" else own.outputs[own.output]
        spread = "" if own.spread is None else f" ± {own.spread[own.output]:.2g}"
        beside = ", unlike anything trained on" if own.unlike else ""
        if own.interval is not None:
            bounds = " to ".join(f"{bound[own.output]:.4g}" for bound in (own.interval.low, own.interval.high))
            beside = f", {100 * own.interval.level:g}% interval {bounds}{beside}"
        return f"{own.source}, {what} {own.prediction[own.output]:.4g}{spread}{beside} ({self.size / 1e6:.1f} MB)"


def explain_file(
    run: str | Path,
    given: Any,
    out: str | Path,
    *,
    row: int | None = None,
    smiles: str | None = None,
    descriptors: Sequence[float] | None = None,
    target: str | None = None,
    item: int = 0,
    attributions: bool = True,
    draws: int = 1,
    over: Over = "identifiers",
    data: Path | None = None,
    device: Device = "auto",
    max_atoms: int | None = None,
    overwrite: bool = False,
) -> Report:
    """Write ``out``, one self-contained HTML file that explains one prediction of a run.

    Args:
        run: the folder of a run, or one that comes with the package (``pretrained:gap``).
        given: a SMILES, a file, or a graph, as :func:`~tokengt.workflow.explaining.explain` takes it.
        out: the file to write.
        row: which row of a file, counted from 1 without its header.
        smiles: the column of SMILES.
        descriptors: the extra numbers the run was trained with.
        target: the one target or class to explain; all of them, if they are few, where it is left out.
        item: of a run that predicts nodes or edges: which of them, from 0.
        attributions: whether to ask what moved the prediction, which takes most of the time.
        draws: how many draws are averaged. The page of a single one still says how far others lie from it.
        over: what differs between draws.
        data: the store that the run was trained with, where it does not lie in its folder.
        device: where the model runs.
        max_atoms: how large a molecule may be, instead of the run's own limit.
        overwrite: replace ``out``.
    """
    out = Path(out)
    check_page(out, overwrite)
    predictor = Predictor.load(run, device, max_atoms=max_atoms)

    def asked(
        of: Predictor | str | Path, output: str | int | None, methods: Sequence[Method], usual: int
    ) -> Explanation:
        return explain(
            of,
            given,
            row=row,
            smiles=smiles,
            descriptors=descriptors,
            target=output,
            item=item,
            methods=methods,
            draws=draws,
            over=over,
            usual=usual,
            data=data,
            device=device,
            max_atoms=max_atoms,
        )

    first = asked(find_run(run), target, ATTRIBUTIONS if attributions else (), USUAL)
    first = with_spread(predictor, first) if draws == 1 else first
    several = attributions and target is None and 1 < len(first.outputs) <= _MOST_OUTPUTS
    places = [place for place in range(len(first.outputs)) if place != first.output] if several else []
    page = render(first, [asked(predictor, place, _PER_OUTPUT, 0) for place in places]).encode()
    write_whole(out, page)
    return Report(out, len(page), first)


def with_spread(predictor: Predictor, explanation: Explanation) -> Explanation:
    """The same with the standard deviation over a few draws of the identifiers; as it is, where there are none."""
    draws = _SPREAD_DRAWS if all(member.model.has_draws for member in predictor.members) else 1
    if draws == 1:
        return explanation
    _, std = predictor.predict_graphs(as_batch(explanation.graph), draws)
    assert std is not None, "several draws have a deviation"
    return replace(explanation, spread=std[explanation.row].numpy())


def check_page(out: Path, overwrite: bool) -> None:
    """Whatever is wrong with the file to write is said before any work is done."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{out}: the report is an HTML page; choose a name that ends in .html")
    ready_to_write(out)
    if out.is_file() and not overwrite:
        raise ValueError(f"{out} exists; choose another name, or have it replaced (--force, in Python overwrite=True)")
