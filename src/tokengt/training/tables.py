"""Results as data and as tables: JSON, Markdown, and where they came from."""

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from tokengt.files import write_whole


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and the sample's standard deviation, None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def write_json(file: Path, content: object) -> None:
    write_whole(file, (json.dumps(content, indent=1) + "\n").encode())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def source_commit() -> str | None:
    """The checked-out commit of this package, with a ``+`` when its files differ; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", str(folder.parent)])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changes else "")
