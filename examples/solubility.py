"""How well do molecules dissolve in water? Train on the bundled ESOL data, predict new molecules.

Two to three minutes on two cores. The folder then holds what every run holds: weights, model card, pictures.

python examples/solubility.py --out runs/solubility
"""

import argparse
from pathlib import Path

import tokengt
from tokengt.data.datasets import bundled

MOLECULES = {
    "ethanol": "CCO",
    "caffeine": "Cn1c(=O)c2c(ncn2C)n(C)c1=O",
    "typing error": "C1CCCC",
    "β-carotene": "CC1=C(C(C)(C)CCC1)/C=C/C(C)=C/C=C/C(C)=C/C=C/C=C(C)/C=C/C=C(C)/C=C/C1=C(C)CCCC1(C)C",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/solubility"))
    args = parser.parse_args()

    settings = {"training.epochs": args.epochs}
    tokengt.train(bundled("esol.csv.xz"), args.out, target="logSolubility", settings=settings, resume=True)
    model = tokengt.load(args.out)
    told = model.predict(list(MOLECULES.values()), draws=16)
    for place, name in enumerate(MOLECULES):
        print(f"{name:12} {told.mean[place, 0]:6.2f} ± {told.std[place, 0]:.2f}  {told.problems.get(place, '')}")


if __name__ == "__main__":
    main()
