"""Drawings of molecules to SMILES, and SMILES to drawings and pictures, by RDKit. This module does not import torch.

These functions run in a process that reads molecules (:mod:`tokengt.serve.readers`). A ValueError of theirs is a
sentence for the person who drew or typed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy, read_molecule

# A drawing is cut off here: nobody draws larger ones by hand.
MOST_DRAWN = 500
ORDERS = (1, 2, 3)
MOST_CHARGE = 8
# Width and height of a picture, and how long its bonds are where they fit.
_PICTURE, _BOND = (210, 140), 22


@dataclass(frozen=True)
class DrawnAtom:
    """An atom of a drawing; ``x`` and ``y`` are in lengths of a bond, y downwards."""

    element: str
    charge: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class DrawnBond:
    """A bond between two atoms, by their places, of order 1, 2 or 3."""

    start: int
    end: int
    order: int = 1


@dataclass(frozen=True)
class Drawing:
    """A molecule as it is drawn: atoms and bonds, hydrogens left out, no stereochemistry."""

    atoms: tuple[DrawnAtom, ...]
    bonds: tuple[DrawnBond, ...]


def smiles_of(drawing: Drawing) -> str:
    """RDKit's canonical SMILES of a drawing, whose hydrogens are those that its bonds and charges leave room for.

    Raises:
        ValueError: an element that does not exist, or an atom with more bonds than it can have.
    """
    from rdkit import Chem, rdBase

    table = Chem.GetPeriodicTable()
    molecule = Chem.RWMol()
    with rdBase.BlockLogs():
        for place, drawn in enumerate(drawing.atoms):
            try:
                number = table.GetAtomicNumber(drawn.element)
            except RuntimeError:
                number = 0
            if number < 1:
                raise ValueError(f"atom {place} is of the element {drawn.element!r}; expected a symbol such as C or Cl")
            atom = Chem.Atom(number)
            atom.SetFormalCharge(drawn.charge)
            molecule.AddAtom(atom)
        orders = dict(zip(ORDERS, (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE), strict=True))
        for bond in drawing.bonds:
            molecule.AddBond(bond.start, bond.end, orders[bond.order])
        try:
            Chem.SanitizeMol(molecule)
        except ValueError as error:
            raise ValueError(f"this drawing is no molecule: {str(error).strip()}") from None
        smiles: str = Chem.MolToSmiles(molecule)
    return smiles


def drawing_of(smiles: str, policy: MoleculePolicy = DEFAULT_POLICY) -> tuple[Drawing, bool]:
    """A SMILES laid out in the plane, aromatic bonds as single and double ones; whether stereochemistry was left out.

    Raises:
        ValueError: it cannot be read.
    """
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    molecule = _laid_out(smiles, policy)
    stereo = any(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in molecule.GetAtoms()) or any(
        bond.GetStereo() != Chem.BondStereo.STEREONONE for bond in molecule.GetBonds()
    )
    Chem.Kekulize(molecule, clearAromaticFlags=True)
    rdDepictor.StraightenDepiction(molecule)
    places = molecule.GetConformer().GetPositions()
    if not np.isfinite(places).all():
        raise ValueError("RDKit finds no places for its atoms")
    # RDKit draws bonds 1.5 long, and its y points upwards.
    atoms = tuple(
        DrawnAtom(atom.GetSymbol(), atom.GetFormalCharge(), round(x / 1.5, 3), round(-y / 1.5, 3))
        for atom, (x, y, _) in zip(molecule.GetAtoms(), places.tolist(), strict=True)
    )
    bonds = tuple(
        DrawnBond(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), min(3, max(1, int(bond.GetBondTypeAsDouble()))))
        for bond in molecule.GetBonds()
    )
    return Drawing(atoms, bonds), stereo


def picture_of(smiles: str, dark: bool, policy: MoleculePolicy = DEFAULT_POLICY) -> str:
    """The molecule as a small SVG, on no background, in colours for a light or a dark page.

    Raises:
        ValueError: it cannot be read.
    """
    from rdkit.Chem.Draw import rdMolDraw2D

    molecule = _laid_out(smiles, policy)
    drawer = rdMolDraw2D.MolDraw2DSVG(*_PICTURE)
    options: Any = drawer.drawOptions()
    if dark:
        rdMolDraw2D.SetDarkMode(options)
    options.clearBackground = False
    options.padding = 0.08
    options.fixedBondLength = _BOND
    options.bondLineWidth = 1.5
    options.minFontSize = 9
    drawer.DrawMolecule(molecule)
    drawer.FinishDrawing()
    svg: str = drawer.GetDrawingText()
    return svg


def _laid_out(smiles: str, policy: MoleculePolicy) -> Any:
    from rdkit.Chem import rdDepictor

    molecule = read_molecule(smiles, policy)
    rdDepictor.Compute2DCoords(molecule)
    return molecule
