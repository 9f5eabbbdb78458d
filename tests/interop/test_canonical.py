"""One molecule, one answer: every spelling gives the same arrays, and stereo centres have their names by the rules."""

import csv
import gzip
import lzma
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem, rdBase
from rdkit.Chem import AllChem, rdDepictor

from tokengt.data.datasets import esol
from tokengt.interop.canonical import NO_CENTRE, OTHER_CENTRE, SAME_SIDE, R, S
from tokengt.interop.molecules import MoleculePolicy, PackedMolecules, pack_molecules

_SHARED = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared/data"))
_FILES = (
    "admet/vdss_lombardo.csv.xz",
    "admet/pgp_broccatelli.csv.xz",
    "admet/solubility_aqsoldb.csv.xz",
    "molecules/bace.csv.xz",
    "molecules/fsmol_smiles.csv.xz",
    "molecules/peptides_func.csv.gz",
)
_POLICIES = (
    MoleculePolicy(),
    MoleculePolicy(salts="largest"),
    MoleculePolicy(stereo="drop"),
    MoleculePolicy(hydrogens="explicit"),
)
# Molecules in which something could depend on the spelling: stereo centres of rings that depend on each other, bonds
# that depend on centres, meso forms, cages, ions, salts of equal parts, isotopes, hydrogens, metals, radicals.
ODD = [
    "C[C@H]1CC[C@@H](C)CC1",
    "C[C@H]1CC[C@H](C)CC1",
    "C[C@H]1C[C@@H](C)C1",
    "C[C@@H]1C[C@H](C)C[C@@H](C)C1",
    "O[C@H]1[C@H](O)[C@@H](O)[C@H](O)[C@H](O)[C@@H]1O",
    "O[C@@H]1[C@H](O)[C@@H](O)[C@H](O)[C@H](O)[C@H]1O",
    "C[C@@H]1[C@H](C)[C@@H](C)[C@H]1C",
    "Clc1ccccc1.C[C@H]1CC[C@@H](C)CC1.C[C@H]1CC[C@H](C)CC1",
    "C[C@H]1CC[C@@H](CC1)[C@@H]1CC[C@H](C)CC1",
    "C1CC[C@H]2CCCC[C@@H]2C1",
    "C1CC[C@H]2CCCC[C@H]2C1",
    "C[C@]12CC[C@H](CC1)C2",
    "C[C@H](c1ccccc1)N1C(=O)C(F)=N[C@]12CC[C@@H](C(C)(C)C)CC2",
    "O[C@H]1CC[C@]2(CC1)CC[C@@H](O)CC2",
    "F[C@@H]1C[C@]12C[C@H]2F",
    "C[C@H](O)[C@@H](O)[C@H](C)O",
    "OC(=O)[C@H](O)[C@@H](O)C(=O)O",
    "OC(=O)[C@@H](O)[C@@H](O)C(=O)O",
    "C[C@H](F)[C@](O)([C@@H](C)F)Cl",
    "F/C=C/C=C\\F",
    "C/C=C/C(/C=C\\C)O",
    "C/C=C/[C@@H](/C=C\\C)O",
    "C[C@H](F)/C(C)=C(/[C@@H](C)F)CC",
    "C1=C/CCCCCC/1",
    "O=C1NC(=O)/C(=C/c2ccccc2)S1",
    "[H][C@@](N)(C)C(O)=O",
    "[2H][C@H](C)O",
    "C[C@H]([13CH3])O",
    "C[S@](=O)c1ccccc1",
    "C[N@+](CC)(CCC)c1ccccc1",
    "Cl[Pt@SP1](F)(Br)I",
    "C[Co@OH3](F)(Cl)(Br)(I)N",
    "[NH3]->[Pt](<-[NH3])(Cl)Cl",
    "[Fe+2].c1cc[cH-]c1.c1cc[cH-]c1",
    "CC(=O)[O-].[Na+].[Na+].CC(=O)[O-]",
    "CCO.OCC.CCN",
    "C12C3C4C1C5C2C3C45",
    "C1C2CC3CC1CC(C2)C3",
    "c1cc2ccc3cccc4ccc(c1)c2c34",
    "C1=CC2=CC=CC=CC2=C1",
    "O=N(=O)c1ccc[n+]([O-])c1",
    "c1ccc2c(c1)[nH]c1ccccc12",
    "[CH3][CH3:7]",
    "[CH2]C[CH]C",
    "[C-]#[O+]",
    "[H][H]",
    "*",
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with rdBase.BlockLogs():
        yield


def spellings(smiles: str, count: int, seed: int = 0) -> list[str]:
    """The same molecule, written in other ways."""
    draw = random.Random(seed)
    molecule = Chem.MolFromSmiles(smiles)
    written = [_without_order(molecule, draw) for _ in range(count)]
    return [text for text in written if _same(text, molecule)]


def _without_order(molecule: Chem.Mol, draw: random.Random) -> str:
    """Atoms, fragments and the way to write them drawn at random."""
    order = list(range(molecule.GetNumAtoms()))
    draw.shuffle(order)
    turned = Chem.RenumberAtoms(molecule, order)
    way = draw.choice(("plain", "plain", "kekule", "bonds", "hydrogens", "atoms"))
    if way == "kekule":
        Chem.Kekulize(turned, clearAromaticFlags=True)
    if way == "atoms":
        turned = Chem.AddHs(turned)
    options = {"allBondsExplicit": way == "bonds", "allHsExplicit": way == "hydrogens", "kekuleSmiles": way == "kekule"}
    # Not canonical: begins at a drawn atom and goes on in the drawn order. RDKit cannot begin so in a salt.
    alone = len(Chem.GetMolFrags(turned)) == 1
    start = draw.randrange(turned.GetNumAtoms()) if alone else -1
    text = Chem.MolToSmiles(turned, canonical=False, rootedAtAtom=start, **options)
    parts = text.split(".")
    draw.shuffle(parts)
    # The two ends of a ring bond may stand in two parts.
    return text if any(letter.isdigit() for letter in text) else ".".join(parts)


def _same(text: str, molecule: Chem.Mol) -> bool:
    """Whether RDKit itself takes the text for the molecule; what it writes and cannot read again tells us nothing."""
    back = Chem.MolFromSmiles(text)
    return back is not None and Chem.MolToSmiles(back) == Chem.MolToSmiles(Chem.RemoveHs(molecule))


def same_for_all(texts: list[str], policy: MoleculePolicy) -> bool:
    packed = pack_molecules(texts, policy)
    assert packed.problems == ()
    alike = all(len(set(counts.tolist())) == 1 for counts in (packed.node_counts, packed.edge_counts))
    return alike and all(_repeats(array, len(texts)) for array in _arrays(packed))


def _arrays(packed: PackedMolecules) -> tuple[np.ndarray, ...]:
    return packed.node_features, packed.edge_index.T, packed.edge_features


def _repeats(array: np.ndarray, times: int) -> bool:
    return bool((array.reshape(times, -1) == array.reshape(times, -1)[0]).all())


@pytest.mark.parametrize("policy", _POLICIES)
def test_every_spelling_of_an_odd_molecule_is_the_same_graph(policy: MoleculePolicy) -> None:
    for smiles in ODD:
        texts = [smiles, *spellings(smiles, 12)]
        assert len(texts) > 6, smiles
        assert same_for_all(texts, policy), smiles


@given(st.sampled_from(ODD), st.integers(0, 2**31))
def test_no_spelling_of_an_odd_molecule_is_another_graph(smiles: str, seed: int) -> None:
    assert same_for_all([smiles, *spellings(smiles, 2, seed)], MoleculePolicy())


def _real(file: str, count: int) -> list[str]:
    path = _SHARED / file
    if not path.exists():
        pytest.skip("no shared data here (set TOKENGT_DATA)")
    opener = lzma.open if path.suffix == ".xz" else gzip.open
    with opener(path, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    column = "mol" if "mol" in rows[0] else "smiles"
    random.Random(0).shuffle(rows)
    texts = [row[column] for row in rows[: 2 * count]]
    return [text for text in texts if Chem.MolFromSmiles(text) is not None][:count]


@pytest.mark.parametrize("file", _FILES)
def test_every_spelling_of_a_real_molecule_is_the_same_graph(file: str) -> None:
    _check_real(file, 12, 5)


@pytest.mark.slow
@pytest.mark.parametrize("file", _FILES)
def test_every_spelling_of_many_molecules_is_the_same_graph(file: str) -> None:
    _check_real(file, 600, 10)


def _check_real(file: str, count: int, times: int) -> None:
    for smiles in _real(file, count):
        random_ones = Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), times, randomSeed=1)
        molecule = Chem.MolFromSmiles(smiles)
        texts = [smiles, *(text for text in random_ones if _same(text, molecule))]
        assert len(texts) > times // 2, smiles
        assert same_for_all(texts, MoleculePolicy()), smiles


def test_bundled_molecules_differ_from_the_spelled_ones_in_order_and_chirality_alone() -> None:
    texts = esol()[0][::5]
    ours, theirs = pack_molecules(texts), pack_molecules(texts, MoleculePolicy(atoms="spelled"))
    assert np.array_equal(ours.node_counts, theirs.node_counts)
    owners = np.repeat(np.arange(len(texts)), ours.node_counts)
    for packed in (ours, theirs):
        packed.node_features[:, 1] = 0
    rows = [sorted(zip(owners.tolist(), each.node_features.tolist(), strict=True)) for each in (ours, theirs)]
    assert rows[0] == rows[1]
    # Every bond has the lower end first, and bonds come in the order of their ends.
    first, second = ours.edge_index[:, ::2]
    of_bonds = np.repeat(np.arange(len(texts)), ours.edge_counts // 2)
    assert (first < second).all()
    assert (np.diff(of_bonds * 10**6 + first * 10**3 + second) > 0).all()


def _centres(smiles: str) -> list[int]:
    column = pack_molecules([smiles]).node_features[:, 1]
    return sorted(column[column != NO_CENTRE].tolist())


def test_centres_have_the_names_that_chemists_give_them() -> None:
    # L-alanine is S, L-cysteine R, because sulfur comes before oxygen.
    assert _centres("C[C@H](N)C(=O)O") == [S]
    assert _centres("SC[C@H](N)C(=O)O") == [R]
    # Natural tartaric acid is (R,R), the meso form (R,S).
    assert _centres("OC(=O)[C@H](O)[C@@H](O)C(=O)O") == [R, R]
    assert _centres("OC(=O)[C@@H](O)[C@@H](O)C(=O)O") == [R, S]


@pytest.mark.parametrize(
    ("smiles", "rows"),
    [
        ("C[C@H]1CC[C@@H](C)CC1", [SAME_SIDE, SAME_SIDE]),  # cis
        ("C[C@H]1CC[C@H](C)CC1", [OTHER_CENTRE, OTHER_CENTRE]),  # trans
        ("N[C@H]1CC[C@@](C)(O)CC1", [SAME_SIDE, SAME_SIDE]),  # amine and hydroxyl on one side
        ("N[C@H]1CC[C@@](O)(C)CC1", [OTHER_CENTRE, OTHER_CENTRE]),
        ("C[C@H]1C[C@@H](C)C1", [SAME_SIDE, SAME_SIDE]),
        ("C1CC[C@H]2CCCC[C@@H]2C1", [OTHER_CENTRE, OTHER_CENTRE]),  # trans-decalin
        ("C1CC[C@H]2CCCC[C@H]2C1", [SAME_SIDE, SAME_SIDE]),
        ("C[C@@H]1C[C@H](C)C[C@@H](C)C1", [SAME_SIDE, SAME_SIDE, OTHER_CENTRE]),  # two on one side, one on the other
        ("F[Pt@SP1](Cl)(Br)I", [OTHER_CENTRE]),
    ],
)
def test_sides_of_a_ring_by_hand(smiles: str, rows: list[int]) -> None:
    assert _centres(smiles) == rows
    # Hydrogens as atoms of their own change nothing.
    explicit = pack_molecules([smiles], MoleculePolicy(hydrogens="explicit")).node_features[:, 1]
    assert sorted(explicit[explicit != NO_CENTRE].tolist()) == rows


@pytest.mark.parametrize("centre", ["[C@@H](O)", "[C@H](O)", "[C@@](C)(O)", "[C@@](O)(C)", "[C@]([2H])(O)"])
def test_sides_are_those_of_the_molecule_in_space(centre: str) -> None:
    """How far amine and hydroxyl lie above the plane of the ring, with atoms in space, says on which side each is."""
    smiles = f"N[C@H]1CC{centre}CC1"
    molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert AllChem.EmbedMolecule(molecule, randomSeed=7) == 0
    at = molecule.GetConformer().GetPositions()
    ring = at[list(molecule.GetRingInfo().AtomRings()[0])]
    upwards = np.linalg.svd(ring - ring.mean(0))[2][2]
    heights = []
    for group in (atom for atom in molecule.GetAtoms() if atom.GetSymbol() in "NO"):
        (holder,) = (atom for atom in group.GetNeighbors() if atom.IsInRing())
        outside = [atom.GetIdx() for atom in holder.GetNeighbors() if not atom.IsInRing()]
        (other,) = set(outside) - {group.GetIdx()}
        heights.append(float((at[group.GetIdx()] - at[other]) @ upwards))
    rows = [SAME_SIDE if heights[0] * heights[1] > 0 else OTHER_CENTRE] * 2
    assert _centres(smiles) == rows
    column = pack_molecules([Chem.MolToMolBlock(molecule)], kind="molblock").node_features[:, 1]
    assert sorted(column[column != NO_CENTRE].tolist()) == rows


def test_a_drawing_is_the_same_graph() -> None:
    for smiles in ODD[:20]:
        molecule = Chem.MolFromSmiles(smiles)
        rdDepictor.Compute2DCoords(molecule)
        block = Chem.MolToMolBlock(molecule)
        if Chem.MolToSmiles(Chem.MolFromMolBlock(block)) == Chem.MolToSmiles(molecule):
            drawn, written = pack_molecules([block], kind="molblock"), pack_molecules([smiles])
            assert all(map(np.array_equal, _arrays(drawn), _arrays(written))), smiles


def test_the_other_way_to_find_stereo_changes_nothing() -> None:
    """A program may have chosen RDKit's newer way for itself: it keeps it, and graphs are as they were."""
    texts = ODD[:30]
    before = pack_molecules(texts)
    Chem.SetUseLegacyStereoPerception(False)
    try:
        after = pack_molecules(texts)
        assert not Chem.GetUseLegacyStereoPerception()
    finally:
        Chem.SetUseLegacyStereoPerception(True)
    assert all(map(np.array_equal, _arrays(before), _arrays(after)))
