"""Molecules as data to draw: what is written where, and on which side the second line of a bond lies."""

import numpy as np
import pytest

from tokengt.interop.depiction import Depiction, depict
from tokengt.interop.molecules import MoleculePolicy
from tokengt.interop.smiles import from_smiles

# Atoms in the order of the text, so that a test can name them.
SPELLED = MoleculePolicy(atoms="spelled")


def lengths(drawing: Depiction) -> list[float]:
    return [float(np.hypot(*(drawing.places[bond.begin] - drawing.places[bond.end]))) for bond in drawing.bonds]


def test_ethanol_is_two_corners_and_a_hydroxyl() -> None:
    drawing = depict("CCO", SPELLED)
    assert [(atom.symbol, atom.written, atom.hydrogens) for atom in drawing.atoms] == [
        ("C", False, 0),
        ("C", False, 0),
        ("O", True, 1),
    ]
    assert [(bond.begin, bond.end, bond.style) for bond in drawing.bonds] == [(0, 1, "single"), (1, 2, "single")]
    np.testing.assert_allclose(lengths(drawing), 1.0, atol=0.01)
    np.testing.assert_allclose(drawing.places.min(0) + drawing.places.max(0), 0.0, atol=1e-9)
    # Its neighbour lies to the right of an oxygen that has its hydrogen on the left, and the other way round.
    towards = drawing.places[1, 0] - drawing.places[2, 0]
    assert drawing.atoms[2].hydrogens_side == ("left" if towards > 0 else "right")


@pytest.mark.parametrize(("smiles", "written"), [("C", True), ("C=C=C", True), ("CC", False), ("[13CH3]C", True)])
def test_a_carbon_is_written_where_it_would_not_be_seen(smiles: str, written: bool) -> None:
    """Alone, in a straight line or as an isotope."""
    atoms = depict(smiles, SPELLED).atoms
    assert atoms[len(atoms) // 2 if smiles == "C=C=C" else 0].written is written


def bonds_of(drawing: Depiction, atom: int) -> list[float]:
    """The angles at which bonds leave an atom."""
    ends = [bond.end if bond.begin == atom else bond.begin for bond in drawing.bonds if atom in (bond.begin, bond.end)]
    return [float(np.arctan2(*(drawing.places[end] - drawing.places[atom])[::-1])) for end in ends]


@pytest.mark.parametrize("smiles", ["CNC", "CCNCC", "c1ccccc1NC(C)=O"])
def test_a_hydrogen_between_two_bonds_is_written_where_none_leaves(smiles: str) -> None:
    """A nitrogen in a chain that runs from left to right has it above or below."""
    drawing = depict(smiles, SPELLED)
    place = next(place for place, atom in enumerate(drawing.atoms) if atom.symbol == "N")
    angle = {"right": 0.0, "left": np.pi, "above": np.pi / 2, "below": -np.pi / 2}[drawing.atoms[place].hydrogens_side]
    assert max(np.cos(angle - bond) for bond in bonds_of(drawing, place)) < np.cos(np.radians(50))


@pytest.mark.parametrize("smiles", ["C[N+](=O)[O-]", "O=[N+]([O-])c1ccccc1", "CC(=O)[O-]"])
def test_a_charge_is_written_beside_the_bonds(smiles: str) -> None:
    drawing = depict(smiles, SPELLED)
    corners = {"upper right": 45, "upper left": 135, "lower right": -45, "lower left": -135}
    charged = [place for place, atom in enumerate(drawing.atoms) if atom.charge]
    assert charged
    for place in charged:
        angle = np.radians(corners[drawing.atoms[place].charge_corner])
        assert max(np.cos(angle - bond) for bond in bonds_of(drawing, place)) <= np.cos(np.radians(30))


def test_charges_and_isotopes_are_told() -> None:
    first, second = depict("[2H][NH3+]", SPELLED).atoms
    assert (first.symbol, first.isotope, second.charge, second.hydrogens) == ("H", 2, 1, 3)


def test_the_second_line_of_a_ring_bond_lies_inside() -> None:
    drawing = depict("c1ccccc1", SPELLED)
    doubles = [bond for bond in drawing.bonds if bond.style == "double"]
    assert len(doubles) == 3
    for bond in doubles:
        (ax, ay), (bx, by) = drawing.places[bond.begin], drawing.places[bond.end]
        centre = drawing.places.mean(0)
        left = (bx - ax) * (centre[1] - ay) - (by - ay) * (centre[0] - ax)
        assert bond.side == np.sign(left)


def test_a_double_bond_at_an_end_is_two_lines_around_the_middle() -> None:
    (bond,) = [bond for bond in depict("CC(C)=O", SPELLED).bonds if bond.style == "double"]
    assert bond.side == 0


def test_a_wedge_begins_at_its_centre() -> None:
    styles = {bond.style: bond for bond in depict("C[C@H](N)O", SPELLED).bonds}
    wedge = styles.get("wedge") or styles["hash"]
    assert wedge.begin == 1
    # The mirror image has the other kind of wedge at the same bond.
    mirror = {bond.style: bond for bond in depict("C[C@@H](N)O", SPELLED).bonds}
    assert ("wedge" in styles) != ("wedge" in mirror)


@pytest.mark.parametrize(
    "policy", [MoleculePolicy(), SPELLED, MoleculePolicy(hydrogens="explicit"), MoleculePolicy(salts="largest")]
)
def test_atoms_and_bonds_are_those_of_the_graph(policy: MoleculePolicy) -> None:
    """A number on the drawing would else stand at another atom than the one that is explained."""
    text = "O=C([O-])c1ccccc1.[Na+]"
    drawing, graph = depict(text, policy), from_smiles(text, policy)
    assert len(drawing.atoms) == graph.num_nodes
    ends = [tuple(sorted((bond.begin, bond.end))) for bond in drawing.bonds]
    assert ends == [tuple(sorted(pair)) for pair in graph.edge_index.T[::2].tolist()]


def test_the_same_text_gives_the_same_drawing_and_a_bad_one_a_sentence() -> None:
    np.testing.assert_array_equal(depict("CC(=O)Oc1ccccc1").places, depict("CC(=O)Oc1ccccc1").places)
    with pytest.raises(ValueError, match="the SMILES cannot be read"):
        depict("C1CC")
