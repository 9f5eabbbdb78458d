"""The card of pre-trained weights: what they were made from, what was left out, what they learned."""

from collections.abc import Mapping
from typing import Any

from tokengt.pretraining.store import Manifest

_MEANINGS = {
    "masked": "hidden atoms, cross entropy of a column in nats",
    "bits": "fingerprint bits, cross entropy in nats",
    "descriptors": "RDKit descriptors, Huber loss in standard deviations",
    "numbers": "quantities of the files, Huber loss in standard deviations",
    "answers": "yes/no assays of the files, cross entropy in nats",
    "active": "active or not in assays of few molecules, cross entropy in nats",
    "values": "values of those assays, Huber loss in standard deviations, bounds one-sided",
}


def card(manifest: Manifest, summary: Mapping[str, Any]) -> str:
    """Markdown; the same facts give the same bytes."""
    rows = [f"| {each.name} | {each.kept:,} | {each.excluded:,} | {each.refused:,} |" for each in manifest.origins]
    measured = [
        f"| {_MEANINGS.get(name, name)} | {value:.4g} |"
        for name, value in summary["valid"].items()
        if name in _MEANINGS
    ]
    if manifest.left:
        rows += ["", f"{manifest.left:,} more molecules of these sources were not looked at: the time was over."]
    names = ", ".join(manifest.excluded_names) or "nothing"
    return "\n".join(
        [
            "# Pre-trained weights",
            "",
            f"Made by `tokengt pretrain` from {manifest.count:,} molecules, preset `{summary['preset']}`, targets "
            f"{', '.join(summary['targets'])}, seed {summary['seed']}: {summary['epochs']} epochs, the best was "
            f"{summary['best_epoch']}. `tokengt finetune` begins with this folder.",
            "",
            "## Molecules",
            "",
            "| source | trained on | left out: excluded | left out: unreadable or too large |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Left out are all molecules of {names}, and those that differ from one of them only by salt, stereo or "
            f"charge: {manifest.excluded_keys:,} different keys (largest fragment, stereo removed, neutralised, "
            f"canonical SMILES), SHA-256 of their sorted hashes `{manifest.excluded_sha256}`. Molecules that are "
            "merely similar are not left out.",
            "",
            f"{manifest.described:,} molecules have {len(manifest.descriptors)} descriptors (RDKit {manifest.rdkit}); "
            f"{len(manifest.answers):,} yes/no assays, {len(manifest.numbers):,} quantities, "
            f"{len(manifest.assays):,} assays of few molecules. Store SHA-256 `{manifest.sha256}`.",
            "",
            "## What was learned",
            "",
            "On the 2% of molecules that were held out at random, of which a fifth of all atoms was hidden:",
            "",
            "| objective | mean loss |",
            "|---|---|",
            *measured,
            "",
        ]
    )
