"""Data sets by name: found or downloaded, prepared once, with the official split and no other."""

import csv
import gzip
import lzma
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.published import (
    PCQM,
    pcba_archive,
    pcqm_archive,
    pcqm_folder,
    peptides_files,
    zinc_files,
)
from tests.data.web import Web, web
from tokengt.data import catalogue, downloads, named
from tokengt.data._official import qm9_parts, split_dict
from tokengt.data._pickles import read_pickle, read_torch
from tokengt.data.catalogue import DATASETS, Dataset
from tokengt.data.downloads import Remote
from tokengt.data.manifest import NO_PART, Recipe
from tokengt.data.named import dataset_named, describe, named_store, prepare_any
from tokengt.data.public import NAMES
from tokengt.data.store import Store
from tokengt.interop.molecules import MoleculePolicy

REAL = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of this machine, and a cache of one's own."""
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "_PAUSES", (0.0,))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as running:
        yield running


def real(monkeypatch: pytest.MonkeyPatch, *files: str) -> Path:
    if not all((REAL / "molecules" / name).is_file() for name in files):
        pytest.skip(f"no {files[0]} here (set TOKENGT_DATA)")
    monkeypatch.setenv("TOKENGT_DATA", str(REAL))
    return REAL / "molecules"


def at(server: Web, name: str, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The data set as if its public place were the server."""
    old = DATASETS[name]
    remotes = tuple(Remote(f"{server.address}/{remote.file}", remote.file, remote.size) for remote in old.remotes)
    monkeypatch.setitem(catalogue.DATASETS, name, replace(old, remotes=remotes))
    return DATASETS[name]


def opened(dataset: Dataset) -> Store:
    return named_store(dataset, workers=1, progress=False)


def test_the_light_list_of_names_is_the_catalogue() -> None:
    assert tuple(DATASETS) == NAMES


def test_pcqm4mv2_survives_bad_rows_and_keeps_the_hidden_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcqm_folder(tmp_path / "data")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    store = opened(DATASETS["pcqm4mv2"])
    assert store.texts() == [smiles for number, (smiles, _) in enumerate(PCQM) if number not in (4, 7)]
    assert store.split is not None
    assert store.split.tolist() == [0, 0, 1, 1, NO_PART, NO_PART, NO_PART]
    assert store.targets[:4, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert bool(store.targets[4:].isnan().all())
    assert store.manifest.rejected == 2
    # The row of the public file is its line in the table without the header.
    assert (store.lines - 2).tolist() == [0, 1, 2, 3, 5, 6, 8]


def test_pcqm4mv2_is_downloaded_once_and_equals_the_unpacked_layout(
    server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pcqm_folder(tmp_path / "data")
    server.files["/pcqm4m-v2.zip"] = pcqm_archive(folder)
    server.cuts = [100]
    dataset = at(server, "pcqm4mv2", monkeypatch)
    assert describe(dataset) == (f"to download from {server.address}/pcqm4m-v2.zip", "about 59.0 MB")
    fetched = named_store(dataset, workers=1)
    assert "pcqm4mv2: downloading 1 file(s), about 59.0 MB" in capsys.readouterr().err
    asked = len(server.asked)
    again = opened(dataset)
    assert len(server.asked) == asked == 2
    assert again.data_checksum() == fetched.data_checksum()
    assert describe(dataset)[0] == str(tmp_path / "cache/tokengt/datasets/pcqm4mv2/downloads/pcqm4m-v2.zip")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    assert opened(dataset).data_checksum() == fetched.data_checksum()


def test_a_damaged_download_is_refused(server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/pcqm4m-v2.zip"] = pcqm_archive(pcqm_folder(tmp_path / "data"))
    dataset = at(server, "pcqm4mv2", monkeypatch)
    opened(dataset)
    archive = Path(describe(dataset)[0])
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not the file that was downloaded first"):
        opened(dataset)


def test_a_split_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pcqm_folder(tmp_path / "data")
    torch.save({"train": Trap(str(tmp_path / "sprung"))}, folder / "split_dict.pt")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"split_dict\.pt holds more than tensors.*refused for safety"):
        opened(DATASETS["pcqm4mv2"])
    with pytest.raises(ValueError, match=r"trap wants \w+\.mkdir, which is refused for safety"):
        read_pickle(pickle.dumps(Trap(str(tmp_path / "sprung"))), "trap")
    assert not (tmp_path / "sprung").exists()


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_lists_of_rows_may_be_tensors_or_arrays_of_any_age(tmp_path: Path, zipped: bool) -> None:
    lists = {"train": np.arange(3), "valid": torch.tensor([4, 3]), "test-dev": np.array([6, 5], dtype=np.int32)}
    torch.save(lists, tmp_path / "split_dict.pt", _use_new_zipfile_serialization=zipped)
    found = split_dict([tmp_path / "data.csv.gz", tmp_path / "split_dict.pt"])
    assert {part: rows.tolist() for part, rows in found.items()} == {
        "train": [0, 1, 2],
        "valid": [4, 3],
        "test-dev": [6, 5],
    }
    assert set(read_torch(tmp_path / "split_dict.pt")) == set(lists)


def test_pcqm4mv2_from_real_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real rows in the public layout: 300 to train on, 200 of the official validation part, 100 without labels."""
    names = ("pcqm4mv2_train_first1999.csv", "pcqm4mv2_valid_1000.csv")
    folder = real(monkeypatch, *names)
    train, valid = (list(csv.DictReader((folder / name).read_text().splitlines())) for name in names)
    labelled = [(row["smiles"], row["homolumogap"]) for row in train[:300] + valid[:200]]
    rows = [*labelled, *((row["smiles"], "") for row in valid[200:300])]
    split = {"train": list(range(300)), "valid": list(range(300, 500)), "test-dev": list(range(599, 499, -1))}
    pcqm_folder(tmp_path / "data", rows, split)
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    store = opened(DATASETS["pcqm4mv2"])
    assert (len(store), store.manifest.rejected) == (600, 0)
    assert store.split is not None
    assert [(store.split == code).sum().item() for code in (0, 1, NO_PART)] == [300, 200, 100]
    assert store.targets[:500, 0].tolist() == [float(gap) for _, gap in labelled]


def test_qm9_is_split_as_the_numbers_in_the_papers_are() -> None:
    """130,831 characterised rows, a permutation by seed 0, 110,000 to train on and 10,000 to validate with."""
    codes = qm9_parts(130_831)
    assert np.bincount(codes).tolist() == [110_000, 10_000, 10_831]
    order = np.random.default_rng(0).permutation(130_831)
    assert codes[order[0]] == codes[order[109_999]] == 0
    assert codes[order[110_000]] == codes[order[119_999]] == 1
    assert codes[order[120_000]] == codes[order[-1]] == 2


def test_qm9_leaves_the_uncharacterised_rows_out(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published list has words above and below, and more on each line than a number."""
    dataset = at(server, "qm9", monkeypatch)
    cells = ",".join(["0.5"] * 12)
    rows = [f"gdb_{number},{'C' * number},{cells}" for number in range(1, 6)]
    server.files["/qm9.csv"] = "\n".join([",".join(["mol_id", "smiles", *dataset.targets]), *rows]).encode()
    listed = ["These molecules failed", "   the check:", "       2 CC x 1.0", "     4 CCCC y", " 2 compounds", ""]
    server.files["/uncharacterized.txt"] = "\n".join(listed).encode()
    assert opened(dataset).texts() == ["C", "CCC", "CCCCC"]


def test_real_qm9_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real(monkeypatch, "qm9.csv.xz", "qm9_uncharacterized.txt")
    source = named.sources(DATASETS["qm9"], progress=False)
    assert source.layout.rows is not None
    made = list(source.layout.rows(source.files))
    odd = set(map(int, (folder / "qm9_uncharacterized.txt").read_text().split()))
    with lzma.open(folder / "qm9.csv.xz", "rt") as lines:
        next(lines)
        kept = [row for number, row in enumerate(csv.reader(lines), 1) if number not in odd]
    assert [row[:-1] for row in made] == kept
    assert len(made) == DATASETS["qm9"].rows
    assert [made[0][-1], made[-1][-1]] == [("train", "valid", "test")[qm9_parts(len(made))[end]] for end in (0, -1)]


def test_zinc12k_has_atom_and_bond_types_alone(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files |= zinc_files()
    store = opened(at(server, "zinc12k", monkeypatch))
    assert store.targets[:, 0].tolist() == [-1.0, 0.5, 1.5, 2.5]
    assert store.split is not None
    assert store.split.tolist() == [0, 0, 1, 2]
    ring = store.graphs[0]
    assert ring.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert ring.edge_features is not None
    assert ring.edge_features.flatten().tolist() == [1, 3, 1, 1, 3, 1]
    assert ring.node_features is not None
    assert ring.node_features.tolist() == [[2], [0], [0]]
    assert not store.is_molecules
    with pytest.raises(ValueError, match="a way to read molecules means nothing there"):
        prepare_any("zinc12k", Path("own"), Recipe(policy=MoleculePolicy("largest")), progress=False)


def test_real_zinc12k(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real(monkeypatch, "zinc12k_graphs.npz", "zinc12k.csv.xz")
    store = opened(DATASETS["zinc12k"])
    assert store.split is not None
    assert torch.bincount(store.split.long()).tolist() == [10_000, 1_000, 1_000]
    arrays = np.load(folder / "zinc12k_graphs.npz")
    assert store.graphs.nodes.total == len(arrays["atom_type"])
    assert store.graphs.edges.total == 2 * len(arrays["edge_type"])
    with lzma.open(folder / "zinc12k.csv.xz", "rt") as lines:
        assert store.targets[:, 0].tolist() == [float(row["y"]) for row in csv.DictReader(lines)]


def test_molpcba_has_ogbs_scaffold_split_and_gaps(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = at(server, "molpcba", monkeypatch)
    assert (len(dataset.targets), dataset.targets[0], dataset.targets[-1]) == (128, "PCBA-1030", "PCBA-995")
    server.files["/pcba.zip"] = pcba_archive(dataset.targets)
    store = opened(dataset)
    assert store.split is not None
    assert store.split.tolist() == [1, 2, 0]
    assert store.targets[0, :2].tolist() == [1.0, 0.0]
    assert store.targets.isnan().sum(1).tolist() == [126, 0, 0]


def test_peptides_have_the_official_split(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files |= peptides_files()
    store = opened(at(server, "peptides-func", monkeypatch))
    assert store.split is not None
    assert store.split.tolist() == [1, 2, 0]
    assert store.targets.sum(0).tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_molpcba_from_arrays_and_peptides_from_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of TOKENGT_DATA."""
    folder = tmp_path / "data" / "molecules"
    folder.mkdir(parents=True)
    (folder / "pcba_smiles.csv.xz").write_bytes(lzma.compress(b"smiles\nCCO\nCCN\n"))
    np.save(folder / "labels.npy", np.stack([np.full(128, -1), np.arange(128) % 2]).astype(np.int8))
    labels = (folder / "labels.npy").read_bytes()
    (folder / "pcba_labels.npy.xz").write_bytes(lzma.compress(labels))
    np.savez(folder / "pcba_split.npz", split=np.array([2, 0], dtype=np.uint8))
    (folder / "peptides_func.csv.gz").write_bytes(peptides_files()["/peptide_multi_class_dataset.csv.gz"])
    np.savez(folder / "peptides_func_split.npz", train=np.array([1, 2]), val=np.array([0]), test=np.array([], int))
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    pcba, peptides = opened(DATASETS["molpcba"]), opened(DATASETS["peptides-func"])
    assert pcba.split is not None
    assert peptides.split is not None
    assert (pcba.split.tolist(), peptides.split.tolist()) == ([2, 0], [1, 0, 0])
    assert pcba.targets[1].tolist() == [0.0, 1.0] * 64
    assert bool(pcba.targets[0].isnan().all())


@pytest.mark.parametrize("name", ["freesolv", "bace", "tox21", "hiv"])
def test_moleculenet_files_have_other_names_and_columns_in_public(
    server: Web, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dataset = at(server, name, monkeypatch)
    columns = {"freesolv": ("smiles", ["expt"]), "bace": ("mol", ["Class"])}
    smiles, labels = columns.get(name, ("smiles", list(dataset.targets)))
    rows = [f"x,{text},{','.join(['1'] * len(labels))}" for text in ("c1ccccc1O", "c1ccccc1N", "C1CC1", "CCO")]
    table = "\n".join([",".join(["extra", smiles, *labels]), *rows]).encode()
    server.files[f"/{dataset.remotes[0].file}"] = gzip.compress(table) if name == "tox21" else table
    store = opened(dataset)
    assert store.manifest.target_names == dataset.targets
    assert store.targets.tolist() == [[1.0] * len(labels)] * 4
    # The largest scaffold, benzene, trains; the others follow from the end of the file.
    assert (None if store.split is None else store.split.tolist()) == (
        [0, 0, 2, 1] if name in ("bace", "hiv") else None
    )


def test_esol_comes_with_the_package_and_needs_no_network() -> None:
    store = opened(DATASETS["esol"])
    assert (len(store), store.split, store.manifest.target_names) == (1_128, None, ("logSolubility",))


def test_another_policy_or_source_is_another_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcqm_folder(tmp_path / "data")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    dataset = DATASETS["pcqm4mv2"]
    plain = opened(dataset)
    explicit = named_store(dataset, MoleculePolicy(hydrogens="explicit"), workers=1, progress=False)
    assert explicit.graphs.nodes.total > plain.graphs.nodes.total
    pcqm_folder(tmp_path / "other", [*PCQM[:8], ("CCl", "")])
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "other"))
    texts = opened(dataset).texts()
    assert texts is not None
    assert texts[-1] == "CCl"


def test_a_file_or_folder_of_the_name_wins(tmp_path: Path) -> None:
    assert dataset_named("qm9") is DATASETS["qm9"] is dataset_named(Path("qm9"))
    assert dataset_named("./qm9.csv") is None
    Path("qm9").mkdir()
    assert dataset_named("qm9") is None


def test_no_network_is_one_sentence(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = at(server, "qm9", monkeypatch)
    server.status = 503
    with pytest.raises(OSError, match=r"qm9\.csv cannot be downloaded: the server says 503"):
        opened(dataset)


def test_wrong_files_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pcqm_folder(tmp_path / "data", split={"train": [0, 1, 2, 3], "valid": [4], "test-dev": [5]})
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    with pytest.raises(ValueError, match="puts row 6 in no part"):
        opened(DATASETS["pcqm4mv2"])
    (folder / "raw" / "data.csv.gz").write_bytes(gzip.compress(b"idx,text\n"))
    with pytest.raises(ValueError, match="has no column 'smiles'"):
        opened(DATASETS["pcqm4mv2"])
    (folder / "raw" / "data.csv.gz").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"data\.csv\.gz is torn"):
        opened(DATASETS["pcqm4mv2"])
    torch.save({"train": np.arange(3)}, folder / "split_dict.pt")
    with pytest.raises(ValueError, match="lists no rows of valid"):
        opened(DATASETS["pcqm4mv2"])
    assert not list((tmp_path / "cache").rglob("*.csv.gz"))
