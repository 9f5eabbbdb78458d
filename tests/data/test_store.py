import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tests.graphs import hypergraph, odd_graphs
from tokengt import Graph, GraphBatch, from_smiles
from tokengt.data import facts
from tokengt.data.manifest import Manifest, Recipe, Source, TargetColumn, featurisation, read_manifest
from tokengt.data.merge import write_store
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.data.tensorfile import TensorStream
from tokengt.interop.molecules import MoleculePolicy
from tokengt.structure.facts import HopDistances, LaplacianVectors
from tokengt.structure.laplacian import laplacian_eigenvectors, laplacian_fact

SMILES = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of four molecules."""
    source = tmp_path / "t.csv"
    source.write_text("smiles,y\n" + "".join(f"{smiles},{place}\n" for place, smiles in enumerate(SMILES)))
    prepare(source, tmp_path / "store", Recipe("smiles", ("y",)), progress=False)
    return tmp_path / "store"


def test_open_gives_back_what_was_prepared(folder: Path) -> None:
    for verify in (True, False):
        store = Store.open(folder, verify)
        assert len(store) == 4
        assert store.is_molecules
        assert store.folder == folder
        assert store.texts() == SMILES
        assert store.texts([2, 0]) == ["[Na+].[Cl-]", "CCO"]
        assert store.targets.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
        assert store.lines.tolist() == [2, 3, 4, 5]
        assert store.split is None
        assert store.manifest.counts == {"graphs": 4, "nodes": 12, "edges": 16, "hyperedges": 0, "rows": 4}
        batch = store.graphs.select([1, 3])
        expected = GraphBatch.collate([from_smiles("c1ccccc1"), from_smiles("C")])
        assert torch.equal(batch.edge_index, expected.edge_index)


def test_the_manifest_says_what_the_issue_asks_and_no_more(folder: Path) -> None:
    data = json.loads((folder / "manifest.json").read_text())
    assert data["format"] == "tokengt-store-1"
    assert data["source"]["name"] == "t.csv"
    assert len(data["source"]["sha256"]) == 64
    assert data["featurisation"]["version"] == 2
    policy = {"salts": "keep", "stereo": "keep", "hydrogens": "implicit", "atoms": "canonical"}
    assert data["featurisation"]["policy"] == policy
    assert set(data["files"]) == {"graphs.safetensors", "rejected.csv"}
    assert str(folder.parent) not in (folder / "manifest.json").read_text()


def test_changed_and_missing_files_are_named(folder: Path) -> None:
    path = folder / "graphs.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"abc")
    with pytest.raises(ValueError, match=r"graphs.safetensors does not match its checksum: it is torn or was changed"):
        Store.open(folder)
    path.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"graphs.safetensors is torn"):
        Store.open(folder, verify=False)
    path.unlink()
    with pytest.raises(ValueError, match=r"graphs.safetensors is missing"):
        Store.open(folder)
    path.write_bytes(whole)
    manifest = (folder / "manifest.json").read_text()
    for broken, sentence in (
        (manifest[:50], "is not valid JSON"),
        ("[]", "expected names with their values"),
        ("{}", "has format None"),
        (manifest.replace('"edges": 16', '"edges": 17'), "does not match its own checksum"),
        (manifest.replace('"order"', '"orders"'), "orders is unknown"),
        (manifest.replace('"level": "graph",', ""), "level is missing"),
    ):
        (folder / "manifest.json").write_text(broken)
        with pytest.raises(ValueError, match=sentence) as error:
            Store.open(folder)
        assert str(folder) in str(error.value)
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"is no tokengt store: manifest.json is missing"):
        Store.open(folder)


def _places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in what JSON holds."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*before, key)
        yield from _places(value, (*before, key))


def _refusal(folder: Path) -> str | None:
    try:
        Store.open(folder)
    except ValueError as error:
        return str(error)
    return None


def test_a_wrong_type_anywhere_in_a_manifest_is_one_sentence(folder: Path) -> None:
    """The kind of a store, its columns and its policy could be anything, and then failed somewhere else."""
    file = folder / "manifest.json"
    whole = json.loads(file.read_bytes())
    del whole["sha256"]  # as manifests of earlier versions, which still open
    file.write_text(json.dumps(whole))
    assert Store.open(folder).manifest.files == whole["files"]
    opened = set()
    for path in _places(whole):
        for wrong in (None, True, 7, 2**80, 1.5, "x", [], [[1]], {"a": 1}):
            data = copy.deepcopy(whole)
            holder = data
            for key in path[:-1]:
                holder = holder[key]
            if holder[path[-1]] == wrong:
                continue
            holder[path[-1]] = wrong
            file.write_text(json.dumps(data))
            sentence = _refusal(folder)
            if sentence is None:
                opened.add((*path, json.dumps(wrong)))
            else:
                assert str(folder) in sentence, path
                assert "\n" not in sentence, path
    # Another text for a text, or another number for a version, is no wrong type: the checksum notices it.
    text = {("source", "name"), ("source", "sha256"), ("featurisation", "rdkit"), ("columns", "smiles")}
    text |= {("targets", 0, "name"), ("columns", "targets", 0), ("files", "rejected.csv"), ("columns", "split")}
    nothing = {("columns", "smiles", "null"), ("featurisation", "rdkit", "null")}
    other = {("featurisation", "version", "7"), ("columns", "targets", "[]"), ("targets", 0, "classes", "[]")}
    assert opened == {(*path, '"x"') for path in text} | nothing | other


def test_a_changed_manifest_is_noticed(folder: Path) -> None:
    file = folder / "manifest.json"
    whole = file.read_bytes()
    random = Random(0)
    for _ in range(100):
        place = random.randrange(len(whole))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << random.randrange(8)]) + whole[place + 1 :])
        if file.read_bytes().split() != whole.split():
            with pytest.raises(ValueError, match=r"manifest\.json"):
                Store.open(folder)
    file.write_text("{" * 100_000)
    with pytest.raises(ValueError, match=r"manifest.json is not valid JSON"):
        Store.open(folder)
    rows = json.loads(whole)["source"]["rows"]
    data = json.loads(whole)
    data["source"]["rows"] = rows + 1
    del data["sha256"]
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"of {rows + 1} rows; expected them to add up"):
        Store.open(folder)


def test_rejected_rows_may_be_edited(folder: Path) -> None:
    """People open that file in a spreadsheet and save it; the data is not touched by that."""
    (folder / "rejected.csv").write_text("mine now")
    assert len(Store.open(folder)) == 4


def test_a_large_store_is_mapped_and_not_read(tmp_path: Path) -> None:
    """96 MB of features: opening costs next to nothing, and what is used is read."""
    rows = 1 << 20
    tensors = {
        "node_offsets": np.array([0, rows]),
        "edge_offsets": np.zeros(2, dtype=np.int64),
        "edge_index": np.zeros((2, 0), dtype=np.uint8),
        "node_features": np.broadcast_to(np.arange(24, dtype=np.float32), (rows, 24)),
        "targets": np.zeros((1, 0)),
        "lines": np.ones(1, dtype=np.int64),
    }
    manifest = Manifest(
        source=Source("large", "", 1),
        rejected=0,
        featurisation=featurisation(None),
        level="graph",
        task=None,
        targets=(),
        descriptors=(),
        columns={},
        counts={"graphs": 1, "nodes": rows, "edges": 0, "hyperedges": 0, "rows": 1},
    )
    streams = {name: TensorStream.whole(array) for name, array in tensors.items()}
    streams["node_features"] = TensorStream(
        np.dtype("f4"), (rows, 24), lambda: (tensors["node_features"][row : row + 4096] for row in range(0, rows, 4096))
    )
    write_store(tmp_path, manifest, streams, (), ())
    before = resident_megabytes()
    store = Store.open(tmp_path, verify=False)
    assert resident_megabytes() - before < 10
    assert store.graphs.node_features is not None
    assert store.graphs.node_features[rows - 1].tolist() == list(range(24))
    assert len(Store.open(tmp_path, verify=True)) == 1


def resident_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_from_memory_is_what_prepare_makes(folder: Path) -> None:
    batch = GraphBatch.collate([from_smiles(smiles) for smiles in SMILES])
    targets = torch.arange(4.0)[:, None]
    here = Store.from_memory(batch, targets, target_names=["y"], texts=SMILES, policy=MoleculePolicy())
    on_disk = Store.open(folder)
    assert here.is_molecules
    assert here.texts() == on_disk.texts()
    assert here.manifest.targets == on_disk.manifest.targets == (TargetColumn("y"),)
    assert here.manifest.counts == on_disk.manifest.counts
    assert torch.equal(here.targets, on_disk.targets)
    for name, array in on_disk.graphs.arrays().items():
        assert torch.equal(here.graphs.arrays()[name], array), name


def test_from_memory_at_every_level() -> None:
    batch = GraphBatch.collate(odd_graphs())
    for level, rows in (("graph", 7), ("node", batch.num_nodes), ("edge", batch.num_edges)):
        store = Store.from_memory(batch, torch.zeros(rows, 2), target_names=["a", "b"], level=level)  # type: ignore[arg-type]
        assert store.manifest.counts["rows"] == rows
        assert not store.is_molecules
        assert store.texts() is None
        with pytest.raises(
            ValueError, match=rf"targets have shape \[{rows + 1}, 2\]; expected \[{rows}, 2\]: one row per {level}"
        ):
            Store.from_memory(batch, torch.zeros(rows + 1, 2), target_names=["a", "b"], level=level)  # type: ignore[arg-type]
    without = Store.from_memory(GraphBatch.collate([hypergraph()]), None)
    assert without.targets.shape == (1, 0)
    assert without.manifest.counts["hyperedges"] == 4


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_laplacian_in_chunks_is_laplacian_at_once(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(facts, "_GRAPHS_AT_ONCE", 3)
    batch = GraphBatch.collate(odd_graphs())
    store = Store.from_memory(batch, None).with_facts([LaplacianVectors(4, which)], progress=False)  # type: ignore[arg-type]
    vectors = store.graphs.fact(laplacian_fact(4, which))  # type: ignore[arg-type]
    assert vectors is not None
    assert vectors.dtype == torch.float32
    assert torch.allclose(vectors, laplacian_eigenvectors(batch, 4, which).vectors.float(), atol=1e-6)  # type: ignore[arg-type]
    cut = store.graphs.select([6, 1]).fact(laplacian_fact(4, which))  # type: ignore[arg-type]
    assert cut is not None
    assert cut.shape == (23, 4)


def test_the_cache_is_used_and_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0

    def counted(*arguments: object) -> object:
        nonlocal computed
        computed += 1
        return laplacian_eigenvectors(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tokengt.structure.facts.laplacian_eigenvectors", counted)

    def vectors() -> torch.Tensor:
        store = Store.open(folder).with_facts([LaplacianVectors(3)], progress=False)
        kept = store.graphs.fact("laplacian-lowest-3")
        assert kept is not None
        return kept

    first = vectors().clone()
    assert torch.equal(vectors(), first)
    assert computed == 1
    assert sorted(path.name for path in (folder / "cache").iterdir()) == [
        "laplacian-lowest-3.json",
        "laplacian-lowest-3.safetensors",
    ]
    cached = folder / "cache" / "laplacian-lowest-3.safetensors"
    cached.write_bytes(cached.read_bytes()[:-1] + b"x")
    assert torch.equal(vectors(), first)
    assert computed == 2
    note = cached.with_suffix(".json")
    note.write_text(note.read_text().replace('"graphs": "', '"graphs": "0'))
    assert torch.equal(vectors(), first)
    assert computed == 3
    monkeypatch.setattr(facts, "_writable", lambda _: False)
    cached.unlink()
    assert torch.equal(vectors(), first)
    assert computed == 4
    assert not cached.exists()


def test_facts_of_pairs_are_kept_in_pieces_and_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances on disk are those of each graph by itself, whatever pieces they were computed in."""
    store, fact = Store.open(folder), HopDistances(3)
    whole = fact.compute(store.graphs)
    for at_once in (1, 30, 2**22):
        monkeypatch.setattr(facts, "_PAIRS_AT_ONCE", at_once)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        with_facts = store.with_facts([fact, LaplacianVectors(2)], progress=False).graphs
        assert with_facts.fact("hops-3").dtype == torch.int8  # type: ignore[union-attr]
        assert torch.equal(with_facts.fact("hops-3"), whole)  # type: ignore[arg-type]
        cut = with_facts.select([2, 0, 2])
        assert torch.equal(cut.fact("hops-3"), fact.compute(cut))  # type: ignore[arg-type]
        assert cut.fact("laplacian-lowest-2").shape == (cut.num_nodes, 2)  # type: ignore[union-attr]
    monkeypatch.setattr("tokengt.structure.facts.hop_distances", None)
    again = Store.open(folder).with_facts([fact], progress=False)
    assert torch.equal(again.graphs.fact("hops-3"), whole)  # type: ignore[arg-type]


def test_pairs_of_a_large_graph_are_refused_in_one_sentence() -> None:
    batch = GraphBatch.collate([Graph(num_nodes=3), Graph(num_nodes=100_000)])
    with pytest.raises(ValueError, match=r"^graph 1 has 100,000 nodes; facts of all pairs .* up to 32,768 nodes"):
        Store.from_memory(batch, None).with_facts([HopDistances()], progress=False)


def test_manifests_come_back(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.to_json() == (folder / "manifest.json").read_bytes()
    assert manifest.target_names == ("y",)
