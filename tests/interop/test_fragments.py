"""Pieces of molecules: rings, groups and chains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.data.datasets import esol
from tokengt.interop.fragments import fragments
from tokengt.interop.molecules import MoleculePolicy, read_molecule


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("CC(=O)Nc1ccccc1", {"*C": (0,), "*NC(*)=O": (1, 2, 3), "*c1ccccc1": (4, 5, 6, 7, 8, 9)}),
        ("CCO", {"*CC": (0, 1), "*O": (2,)}),
        # An exocyclic double bond belongs to its ring; a trifluoromethyl is one group; two rings stay two.
        ("O=C1CCCC1", {"O=C1CCCC1": (0, 1, 2, 3, 4, 5)}),
        ("CC(F)(F)F", {"*C": (0,), "*C(F)(F)F": (1, 2, 3, 4)}),
        ("C1CC1C2CC2", {"*C1CC1": (3, 4, 5)}),
        ("[Na+].[Cl-]", {"[Na+]": (0,), "[Cl-]": (1,)}),
        ("C", {"C": (0,)}),
    ],
)
def test_pieces_have_names_and_atoms(text: str, pieces: dict[str, tuple[int, ...]]) -> None:
    assert {piece.smiles: piece.atoms for piece in fragments(text, MoleculePolicy(atoms="spelled"))} == pieces


def test_explicit_hydrogens_belong_to_their_atom() -> None:
    found = fragments("CO", MoleculePolicy(hydrogens="explicit", atoms="spelled"))
    assert [piece.atoms for piece in found] == [(0, 2, 3, 4), (1, 5)]


@given(st.integers(0, 1127))
def test_every_atom_is_in_one_piece(place: int) -> None:
    text = esol()[0][place]
    atoms = [atom for piece in fragments(text) for atom in piece.atoms]
    assert sorted(atoms) == list(range(read_molecule(text).GetNumAtoms()))


def test_another_spelling_has_the_same_pieces() -> None:
    spelled = (sorted(piece.smiles for piece in fragments(text)) for text in ("OCc1ccccc1Cl", "Clc1ccccc1CO"))
    first, second = spelled
    assert first == second == ["*C*", "*Cl", "*O", "*c1ccccc1*"]
