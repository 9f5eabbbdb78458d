"""pack_molecules: equal to from_smiles and to OGB, policies by hand, bad texts named and nothing else lost."""

import dataclasses
import re
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem

from tokengt.config import from_dict, to_dict
from tokengt.data.datasets import esol
from tokengt.interop import molecules as module
from tokengt.interop.molecules import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculePolicy,
    PackedMolecules,
    canonical_smiles,
    pack_molecules,
    scaffolds,
)
from tokengt.interop.smiles import from_smiles

LARGEST, DROP, EXPLICIT, SPELLED = (
    MoleculePolicy(salts="largest"),
    MoleculePolicy(stereo="drop"),
    MoleculePolicy(hydrogens="explicit"),
    MoleculePolicy(atoms="spelled"),
)
ODD = [
    "C",
    "[H][H]",
    "[Na+].[Cl-]",
    "*CC",
    "[NH3]->[Fe]",
    "F/C=C/F",
    "F/C=C\\F",
    "C[C@H](N)O",
    "[C]",
    "[Fe+6]",
    "[Ta-6]",
    "[Og]",
    "F[Pt@SP1](Cl)(Br)I",
    "Cc1cccc(I)c1-c1c(C)cccc1Br |wU:7.7|",
    "CC(F)=C(Cl)C |w:1.0|",
    "CCO ethanol",
    "CCO\n",
]
BAD = {
    "": "the SMILES holds no atom",
    "C1CC": "the SMILES cannot be read: .*unclosed ring",
    "CO(C)C": "the SMILES cannot be read: Explicit valence for atom # 1 O, 3, is greater than permitted",
    "c1cccc1": "the SMILES cannot be read: Can't kekulize",
    "CCÖ": "the SMILES cannot be read: it holds characters that are not ASCII",
    "CCO\nCCC": "the SMILES cannot be read: it holds a line break",
    "CCO\0": "the SMILES cannot be read: it holds a line break or another control character",
    "\ud800": "not ASCII",
}


def _equal(packed: PackedMolecules, other: PackedMolecules) -> None:
    for field in dataclasses.fields(PackedMolecules):
        mine, theirs = getattr(packed, field.name), getattr(other, field.name)
        assert np.array_equal(mine, theirs), field.name


def test_packed_equals_one_by_one():
    texts = [*ODD, *esol()[0][::10]]
    packed = pack_molecules(texts)
    assert packed.problems == ()
    assert packed.kept.tolist() == list(range(len(texts)))
    atoms, edges = 0, 0
    for text, nodes, links in zip(texts, packed.node_counts, packed.edge_counts, strict=True):
        graph = from_smiles(text)
        assert np.array_equal(packed.node_features[atoms : atoms + nodes], graph.node_features)
        assert np.array_equal(packed.edge_index[:, edges : edges + links], graph.edge_index)
        assert np.array_equal(packed.edge_features[edges : edges + links], graph.edge_features)
        atoms, edges = atoms + nodes, edges + links
    assert (atoms, edges) == (len(packed.node_features), len(packed.edge_features))


@pytest.mark.parametrize("policy", [MoleculePolicy(), SPELLED])
def test_skipped_getters_change_nothing(policy, monkeypatch):
    texts = [*ODD, *esol()[0][::4]]
    quick = pack_molecules(texts, policy)
    rdkit = module._rdkit()
    monkeypatch.setattr(module, "_rdkit", lambda: dataclasses.replace(rdkit, marks={}))
    _equal(quick, pack_molecules(texts, policy))


def test_chunks_change_nothing(monkeypatch):
    texts = [*ODD, *BAD, "CCO"]
    whole = pack_molecules(texts)
    monkeypatch.setattr(module, "_CHUNK", 4)
    _equal(whole, pack_molecules(texts))


def test_types_and_ranges():
    packed = pack_molecules([*ODD, "no"])
    assert [a.dtype for a in (packed.node_features, packed.edge_index, packed.edge_features)] == ["u1", "i4", "u1"]
    assert [a.dtype for a in (packed.node_counts, packed.edge_counts, packed.kept)] == ["i8"] * 3
    assert (packed.node_features.max(0) < ATOM_CATEGORIES).all()
    assert (packed.edge_features.max(0) < BOND_CATEGORIES).all()


def test_bad_texts_are_named_and_the_others_kept(capfd):
    texts = ["CCO", *BAD, "C"]
    packed = pack_molecules(texts)
    assert packed.kept.tolist() == [0, len(texts) - 1]
    assert [place for place, _ in packed.problems] == list(range(1, len(texts) - 1))
    for (_, reason), expected in zip(packed.problems, BAD.values(), strict=True):
        assert re.search(expected, reason)
        assert "\n" not in reason
    good = pack_molecules(["CCO", "C"])
    _equal(dataclasses.replace(packed, kept=good.kept, problems=()), good)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["smiles", "molblock"])
@pytest.mark.parametrize("texts", [[], ["C1CC"]])
def test_nothing_readable_gives_empty_arrays(texts, kind):
    packed = pack_molecules(texts, kind=kind)
    assert len(packed.problems) == len(texts)
    assert packed.node_features.shape == (0, 9)
    assert packed.edge_index.shape == (2, 0)
    assert packed.edge_features.shape == (0, 3)
    assert len(packed.kept) == len(packed.node_counts) == 0


@given(st.lists(st.sampled_from([*ODD, *BAD]), max_size=8), st.integers(0, 8))
def test_packing_parts_is_packing_the_whole(texts, cut):
    whole, left, right = pack_molecules(texts), pack_molecules(texts[:cut]), pack_molecules(texts[cut:])
    for field in ("node_counts", "edge_counts", "node_features", "edge_features"):
        assert np.array_equal(getattr(whole, field), np.concatenate([getattr(left, field), getattr(right, field)]))
    assert np.array_equal(whole.edge_index, np.concatenate([left.edge_index, right.edge_index], 1))
    shift = min(cut, len(texts))
    assert whole.kept.tolist() == [*left.kept, *(right.kept + shift)]
    assert whole.problems == (*left.problems, *((place + shift, reason) for place, reason in right.problems))


def test_largest_fragment():
    assert pack_molecules(["[Na+].CC(=O)[O-]", "C.N", "[H][H].[Cl-]"], LARGEST).node_counts.tolist() == [4, 1, 1]
    packed = pack_molecules(["Cl.C[C@H](N)O"], LARGEST)
    assert packed.node_features.tolist() == from_smiles("C[C@H](N)O").node_features.tolist()
    # Of two fragments with as many heavy atoms the same one stays whichever is written first, unless it is to be that.
    assert pack_molecules(["N.C", "C.N"], LARGEST).node_features[:, 0].tolist() == [6, 6]
    first = dataclasses.replace(LARGEST, atoms="spelled")
    assert pack_molecules(["N.C", "C.N"], first).node_features[:, 0].tolist() == [6, 5]


def test_dropped_stereo_leaves_none():
    texts = [
        "C[C@H](N)O",
        "F/C=C/F",
        "F[Pt@SP1](Cl)(Br)I",
        "Cc1cccc(I)c1-c1c(C)cccc1Br |wU:7.7|",
        "CC(F)=C(Cl)C |w:1.0|",
    ]
    kept, dropped = pack_molecules(texts), pack_molecules(texts, DROP)
    assert kept.node_features[:, 1].any()
    assert kept.edge_features[:, 1].any()
    assert not dropped.node_features[:, 1].any()
    assert not dropped.edge_features[:, 1].any()
    assert canonical_smiles(["C[C@H](N)O", "F/C=C/F"], DROP) == ["CC(N)O", "FC=CF"]


def test_explicit_hydrogens_are_nodes():
    packed = pack_molecules(["O"], dataclasses.replace(EXPLICIT, atoms="spelled"))
    # Oxygen has row 7 and two neighbours; hydrogens have row 0 and one neighbour; no atom has implicit hydrogens.
    assert packed.node_features[:, [0, 2, 4]].tolist() == [[7, 2, 0], [0, 1, 0], [0, 1, 0]]
    assert packed.edge_index.tolist() == [[0, 1, 0, 2], [1, 0, 2, 0]]
    assert sorted(pack_molecules(["O"], EXPLICIT).node_features[:, 0].tolist()) == [0, 0, 7]
    # from_smiles follows the policy too.
    assert from_smiles("O", EXPLICIT).num_nodes == 3
    assert torch.equal(from_smiles("[H]O[H]", EXPLICIT).edge_index, from_smiles("O", EXPLICIT).edge_index)


def test_policy_is_checked():
    policy = MoleculePolicy()
    object.__setattr__(policy, "salts", "strip")  # the tests' type checker would refuse it in the constructor
    with pytest.raises(ValueError, match="policy salts is 'strip'; expected keep or largest"):
        policy.__post_init__()


@pytest.mark.parametrize("policy", [MoleculePolicy(), LARGEST, DROP, EXPLICIT, SPELLED])
def test_mol_blocks_give_what_their_smiles_give(policy):
    texts = ["F/C=C/F", "c1ccccc1O", "[Na+].CC(=O)[O-]", "C", "C[C@H](N)O"]
    blocks = [Chem.MolToMolBlock(_drawn(text)) for text in texts]
    # A wedge may turn a bond around: only in the canonical order the chiral molecule is the same from both.
    some = len(texts) if policy.atoms == "canonical" else 4
    _equal(pack_molecules(blocks[:some], policy, "molblock"), pack_molecules(texts[:some], policy))
    assert canonical_smiles(blocks, policy, "molblock") == canonical_smiles(texts, policy)


def _drawn(smiles):
    from rdkit.Chem import rdDepictor

    molecule = Chem.MolFromSmiles(smiles)
    rdDepictor.Compute2DCoords(molecule)
    return molecule


def test_bad_mol_blocks_say_why(capfd):
    five = Chem.MolToMolBlock(Chem.MolFromSmiles("C(C)(C)(C)(C)C", sanitize=False), kekulize=False)
    empty = Chem.MolToMolBlock(Chem.Mol())
    packed = pack_molecules(["nonsense", five, empty, "a\nb\nc\nüü"], kind="molblock")
    reasons = [reason for _, reason in packed.problems]
    assert [place for place, _ in packed.problems] == [0, 1, 2, 3]
    assert all(reason.startswith("the mol block ") and "\n" not in reason for reason in reasons)
    assert "Explicit valence for atom # 0 C, 5" in reasons[1]
    assert reasons[2] == "the mol block holds no atom; expected at least one"
    assert capfd.readouterr() == ("", "")


def test_canonical_smiles_know_a_molecule_again():
    assert canonical_smiles(["OCC", "C(O)C", "C1CC", ""]) == ["CCO", "CCO", None, None]
    assert canonical_smiles(["[Na+].CC(=O)[O-]"], LARGEST) == ["CC(=O)[O-]"]
    assert canonical_smiles(["OCC"], EXPLICIT) == canonical_smiles(["C(O)C"], EXPLICIT)


def test_scaffolds_by_hand():
    texts = ["CCc1ccccc1", "OC1CCC(C[C@H]2CCN2)CC1", "CCO", "C1CC", "c1ccccc1.Cl"]
    assert scaffolds(texts) == ["c1ccccc1", "C1CCC(CC2CCN2)CC1", "", "", "c1ccccc1"]
    # It was read before, under whatever limit.
    assert scaffolds(["C" * 1001 + "C1CC1"]) == ["C1CC1"]


def test_molecules_that_would_take_minutes_are_refused_by_their_text() -> None:
    """A molecule of 20,000 atoms, or of rings within rings, stopped a whole file."""
    ladder = "".join(f"*%({2 * place + 10})%({2 * place + 11})" for place in range(150))
    tangled = ladder + "".join(f"*%({2 * place + 10})%({2 * place + 11})" for place in reversed(range(150)))
    cases = {
        "C" * 1000: None,
        "C" * 1001: "the SMILES has 1,001 atoms; expected at most 1,000 (max_atoms)",
        "[13CH4]." * 1200: "the SMILES has 1,200 atoms; expected at most 1,000 (max_atoms)",
        "Cl" * 600: None,
        tangled: "the SMILES has 300 ring bonds; expected at most 250",
        "C" + "1" * 50_000: "the SMILES has 25,000 ring bonds; expected at most 100",
        "("
        * 50_000: "the SMILES has 50,000 characters; expected at most 20,000 for the limit of 1,000 atoms (max_atoms)",
        "CCO " + "name" * 20_000: None,
    }
    began = time.process_time()
    packed = pack_molecules(list(cases))
    assert time.process_time() - began < 5
    problems = dict(packed.problems)
    # Chlorine takes one bond: RDKit refuses it in its own words.
    assert problems.pop(3).startswith("the SMILES cannot be read: Explicit valence for atom")
    assert problems == {place: reason for place, reason in enumerate(cases.values()) if reason is not None}
    assert all(len(reason) < 400 for _, reason in pack_molecules(["[" * 19_000]).problems)


def test_the_limit_of_atoms_counts_nodes_of_the_graph_too() -> None:
    limit = MoleculePolicy(hydrogens="explicit", max_atoms=8)
    assert pack_molecules(["CC", "CCC"], limit).problems == (
        (1, "the SMILES has 11 atoms; expected at most 8 (max_atoms)"),
    )
    assert limit == MoleculePolicy(hydrogens="explicit")  # it decides which molecules are read, and not how
    as_before = {"salts": "keep", "stereo": "keep", "hydrogens": "implicit"}
    assert to_dict(MoleculePolicy()) == {**as_before, "atoms": "canonical"}
    # What older versions wrote had no word for it, and is still written as they wrote it.
    assert from_dict(MoleculePolicy, as_before) == SPELLED
    assert to_dict(SPELLED) == as_before
    assert (MoleculePolicy().version, SPELLED.version) == (2, 1)
    assert from_dict(MoleculePolicy, to_dict(limit)).max_atoms == 8
    for wrong in (0, -1, True):
        with pytest.raises(ValueError, match=r"max_atoms is .*; expected a whole number of at least 1"):
            MoleculePolicy(max_atoms=wrong)


@pytest.mark.parametrize("newer", [False, True])
def test_mol_blocks_say_how_large_they_are(newer: bool) -> None:
    molecule = Chem.MolFromSmiles("C" * 60 + ".O" * 30)
    block = Chem.MolToMolBlock(molecule, forceV3000=newer)
    assert pack_molecules([block], MoleculePolicy(max_atoms=90), "molblock").problems == ()
    (problem,) = pack_molecules([block], MoleculePolicy(max_atoms=89), "molblock").problems
    assert problem == (0, "the mol block has 90 atoms; expected at most 89 (max_atoms)")
    kept = canonical_smiles([block], MoleculePolicy(salts="largest", max_atoms=90).of_whole, "molblock")
    assert kept == [Chem.MolToSmiles(molecule)]
