"""Drawings to SMILES and back."""

import pytest
from rdkit import Chem

from tests.workflow.small import molecules
from tokengt.serve.sketches import Drawing, DrawnAtom, DrawnBond, drawing_of, picture_of, smiles_of


def drawing(elements: str, *bonds: tuple[int, int, int]) -> Drawing:
    return Drawing(tuple(DrawnAtom(each) for each in elements.split()), tuple(DrawnBond(*bond) for bond in bonds))


def test_smiles_of_small_drawings() -> None:
    assert smiles_of(drawing("C O", (0, 1, 1))) == "CO"
    assert smiles_of(drawing("C O", (0, 1, 2))) == "C=O"
    assert smiles_of(drawing("N N", (0, 1, 3))) == "N#N"
    ring = drawing("C C C C C C", *((place, (place + 1) % 6, 1 + place % 2) for place in range(6)))
    assert smiles_of(ring) == "c1ccccc1"
    ion = Drawing((DrawnAtom("C"), DrawnAtom("O", -1)), (DrawnBond(0, 1),))
    assert smiles_of(ion) == "C[O-]"


@pytest.mark.parametrize(
    "text", [*molecules(25)[0], "[NH4+]", "O=[N+]([O-])c1ccccc1", "[Na+].[Cl-]", "CS(=O)(=O)O", "[H][H]"]
)
def test_a_molecule_that_is_drawn_is_the_same_molecule(text: str) -> None:
    """Laid out and written again, all but stereochemistry is there."""
    laid_out, _ = drawing_of(text)
    molecule = Chem.MolFromSmiles(text)
    Chem.RemoveStereochemistry(molecule)
    assert smiles_of(laid_out) == Chem.MolToSmiles(molecule)
    lengths = [
        (laid_out.atoms[bond.start].x - laid_out.atoms[bond.end].x) ** 2
        + (laid_out.atoms[bond.start].y - laid_out.atoms[bond.end].y) ** 2
        for bond in laid_out.bonds
    ]
    assert all(0.3 < length < 3 for length in lengths)


def test_stereochemistry_that_is_left_out_is_said() -> None:
    assert drawing_of("C[C@H](N)C(=O)O")[1]
    assert drawing_of("F/C=C/F")[1]
    assert not drawing_of("FC=CF")[1]


def test_what_is_no_molecule_is_said() -> None:
    with pytest.raises(ValueError, match="atom 1 is of the element 'Xx'"):
        smiles_of(drawing("C Xx"))
    with pytest.raises(ValueError, match="this drawing is no molecule: Explicit valence for atom # 0"):
        smiles_of(drawing("C F F F F F", *((0, place, 1) for place in range(1, 6))))
    with pytest.raises(ValueError, match="cannot be read"):
        drawing_of("C1CC")


def test_a_picture_is_svg_with_the_colours_of_its_page() -> None:
    light, dark = picture_of("CCO", False), picture_of("CCO", True)
    assert light.rstrip().endswith("</svg>")
    assert "<script" not in light
    assert "#000000" in light
    assert "#000000" not in dark
    assert "<rect" not in light
