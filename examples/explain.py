"""What a prediction is made of: atoms and bonds of aspirin that move its HOMO-LUMO gap, and a page to look at.

The run comes with the package and needs no training. The scores of integrated gradients sum to the prediction minus
that of a baseline, in which all atoms and bonds are like the most ordinary one of the molecule, without identifiers.
"""

import argparse
from pathlib import Path

import numpy as np

from tokengt.explain.page.render import render
from tokengt.files import write_whole
from tokengt.workflow.explaining import explain

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/aspirin.html"))
    options = parser.parse_args()
    explanation = explain("pretrained:gap", ASPIRIN)
    print(f"{explanation.outputs[0]} of {ASPIRIN}: {explanation.prediction[0]:.3f} eV")
    for method in ("integrated_gradients", "occlusion"):
        found = explanation.attributions[method]
        best = np.argsort(-np.abs(found.scores))[:5]
        named = ", ".join(f"{explanation.tokens.names[token]} {found.scores[token]:+.3f}" for token in best)
        print(f"{method}: {named}")
    sums = explanation.attributions["integrated_gradients"]
    print(f"scores sum to {sums.total:+.4f}, prediction minus baseline is {sums.change:+.4f}")
    write_whole(options.out, render(explanation).encode())
    print(f"open {options.out}")


if __name__ == "__main__":
    main()
