"""Pieces of molecules that a chemist would name: ring systems, functional groups and the chains between them.

Every atom is in exactly one piece, and no list of groups is needed (in the manner of Ertl, "An algorithm to identify
functional groups in organic molecules", 2017, with rings kept whole).
"""

from dataclasses import dataclass
from typing import Any, Literal

from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy, TextKind, read_molecule

_Kind = Literal["ring", "group", "chain"]


@dataclass(frozen=True)
class Fragment:
    """Some atoms of a molecule; ``smiles`` spells them with a ``*`` where a bond leaves: ``*O`` is a hydroxyl."""

    smiles: str
    atoms: tuple[int, ...]


def fragments(text: str, policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles") -> list[Fragment]:
    """The pieces of a molecule, in the order of their first atoms, which are numbered as in its graph.

    A ring system is all rings that share atoms, with what is bound to them by a double bond. A functional group is
    joined atoms outside rings that are no carbon, or carbon with a double or triple bond or two such neighbours. What
    is left are chains of carbon. Hydrogens that are atoms of their own belong to what they are bound to.

    Raises:
        ValueError: one sentence: why the text cannot be read.
    """
    molecule = read_molecule(text, policy, kind)
    kinds = [_kind(atom) for atom in molecule.GetAtoms()]
    left, found = set(range(len(kinds))), []
    while left:
        piece, waiting = set(), {min(left)}
        while waiting:
            atom = molecule.GetAtomWithIdx(waiting.pop())
            piece.add(atom.GetIdx())
            joined = (bond.GetOtherAtomIdx(atom.GetIdx()) for bond in atom.GetBonds() if _holds(bond, kinds))
            waiting |= set(joined) - piece
        left -= piece
        found.append(Fragment(_spelled(molecule, piece), tuple(sorted(piece))))
    return found


def _kind(atom: Any) -> _Kind:
    double = [bond for bond in atom.GetBonds() if bond.GetBondTypeAsDouble() >= 2]
    if atom.IsInRing() or any(bond.GetOtherAtom(atom).IsInRing() for bond in double):
        return "ring"
    strange = sum(other.GetAtomicNum() not in (1, 6) for other in atom.GetNeighbors())
    return "group" if atom.GetAtomicNum() not in (1, 6) or double or strange > 1 else "chain"


def _holds(bond: Any, kinds: list[_Kind]) -> bool:
    """Whether both atoms of a bond are of one piece: two rings that a single bond joins are not."""
    begin, end = bond.GetBeginAtom(), bond.GetEndAtom()
    if 1 in (begin.GetAtomicNum(), end.GetAtomicNum()):
        return True
    one, other = kinds[begin.GetIdx()], kinds[end.GetIdx()]
    return one == other and (one != "ring" or bool(bond.IsInRing()) or bond.GetBondTypeAsDouble() >= 2)


def _spelled(molecule: Any, atoms: set[int]) -> str:
    """The canonical SMILES of some atoms, with ``*`` for every neighbour that is not among them."""
    from rdkit import Chem

    copy = Chem.RWMol(molecule)
    for bond in list(copy.GetBonds()):
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if atoms.isdisjoint(ends):
            copy.RemoveBond(*ends)
        for end in set(ends) - atoms if not atoms.isdisjoint(ends) else ():
            copy.ReplaceAtom(end, Chem.Atom(0))
    kept = [atom.GetIdx() for atom in copy.GetAtoms() if atom.GetIdx() in atoms or atom.GetDegree() > 0]
    spelled: str = Chem.MolFragmentToSmiles(copy, kept, isomericSmiles=False)
    return spelled
