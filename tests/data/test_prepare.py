"""Files from elsewhere become stores: every readable row, every reason, the same bytes every time."""

import csv
import errno
import gzip
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tokengt.data.prepare as preparing
from tokengt import from_smiles
from tokengt.data import _text, engines, tables
from tokengt.data.manifest import Attributes, Recipe
from tokengt.data.prepare import prepare
from tokengt.data.shards import ShardArrays, ShardRecipe
from tokengt.data.store import Store
from tokengt.data.tables import Row
from tokengt.files import file_checksum
from tokengt.interop.molecules import MoleculePolicy

RECIPE = Recipe(smiles="smiles", targets=("y",))
SMILES = ("CCO", "c1ccccc1O", "bad(", "CC(=O)[O-].[Na+]", "[He]", "CCO")


def table(path: Path, count: int, smiles: tuple[str, ...] = SMILES) -> Path:
    path.write_text("smiles,y\n" + "".join(f"{smiles[row % len(smiles)]},{row / 4}\n" for row in range(count)))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rejected(folder: Path) -> list[dict[str, str]]:
    with (folder / "rejected.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_file_as_people_have_them(tmp_path: Path) -> None:
    """Windows line ends, a byte order mark, quotes, unicode, blank labels, a salt, one atom, twice the same."""
    source = tmp_path / "my data.csv"
    lines = [
        "Näme,Struktur,pIC50,logP",
        '"acid, acetic",CC(=O)O,4.76,-0.17',
        "Ω,CCO, 1e-3 ,",
        "salt,[Na+].[Cl-],,NA",
        "helium,[He],+5,\u22121",
        "broken,C1CC,1,1",
        "text,CCO,high,1",
        'comma,CCO,"3,14",1',
        "short,CCO",
        '"two',
        'lines",CCO,7,8',
        "again,CCO,0.001,",
    ]
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    store = prepare(source, tmp_path / "store", Recipe("Struktur", ("pIC50", "logP")), progress=False)

    assert store.texts() == ["CC(=O)O", "CCO", "[Na+].[Cl-]", "[He]", "CCO", "CCO"]
    assert store.lines.tolist() == [2, 3, 4, 5, 10, 12]
    nan = float("nan")
    expected = [[4.76, -0.17], [0.001, nan], [nan, nan], [5.0, -1.0], [7.0, 8.0], [0.001, nan]]
    assert torch.equal(store.targets.nan_to_num(-99), torch.tensor(expected, dtype=torch.float64).nan_to_num(-99))
    assert [(row["line"], row["Näme"]) for row in rejected(tmp_path / "store")] == [
        ("6", "broken"),
        ("7", "text"),
        ("8", "comma"),
        ("9", "short"),
    ]
    reasons = [row["reason"] for row in rejected(tmp_path / "store")]
    assert "unclosed ring" in reasons[0]
    assert reasons[1] == "target 'pIC50' is 'high'; expected a number"
    assert "write 3.14 for 3,14" in reasons[2]
    assert reasons[3] == "the row has 2 cells; expected 4"
    assert (store.manifest.source.rows, store.manifest.rejected, len(store)) == (10, 4, 6)


def test_graphs_are_those_of_from_smiles(tmp_path: Path) -> None:
    store = prepare(table(tmp_path / "t.csv", 6), tmp_path / "store", RECIPE, progress=False)
    texts = store.texts()
    assert texts is not None
    for place, text in enumerate(texts):
        mine, expected = store.graphs.select([place])[0], from_smiles(text)
        assert torch.equal(mine.node_features.long(), expected.node_features.long())
        assert torch.equal(mine.edge_index, expected.edge_index)
        assert torch.equal(mine.edge_features.long(), expected.edge_features.long())


def test_bytes_do_not_depend_on_workers_or_shards(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", 100)
    first = prepare(source, tmp_path / "first", RECIPE, workers=1, progress=False)
    prepare(source, tmp_path / "second", RECIPE, workers=1, shard_rows=7, progress=False)
    prepare(source, tmp_path / "third", RECIPE, workers=2, shard_rows=11, progress=False)
    expected = contents(tmp_path / "first")
    assert sorted(expected) == ["graphs.safetensors", "manifest.json", "rejected.csv"]
    assert contents(tmp_path / "second") == contents(tmp_path / "third") == expected
    assert (len(first), first.manifest.rejected) == (83, 17)


@pytest.mark.slow
def test_killed_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9 in the middle: the workers end, what was done is not done again, the bytes are the same."""
    source = table(tmp_path / "t.csv", 6000)
    out = tmp_path / "store"
    code = (
        "from pathlib import Path; from tokengt.data.prepare import prepare; from tokengt.data.manifest import Recipe\n"
        f"prepare(Path({str(source)!r}), Path({str(out)!r}), Recipe('smiles', ('y',)), workers=2, shard_rows=30)"
    )
    victim = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob(".shards/*/0*"))) < 5:
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    children = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    done = list(out.glob(".shards/*/0*"))
    assert 5 <= len(done) < 200
    assert not (out / "manifest.json").exists()
    done[0].write_bytes(done[0].read_bytes()[:-1])  # as if the disk had lost a byte

    converted = []
    convert = preparing.convert_shard

    def counted(rows: list[Row], recipe: ShardRecipe) -> ShardArrays:
        converted.append(rows[0].line)
        return convert(rows, recipe)

    monkeypatch.setattr(preparing, "convert_shard", counted)
    prepare(source, out, RECIPE, workers=1, shard_rows=30)
    assert len(converted) == 200 - (len(done) - 1)
    assert f"{len(done) - 1} of 200 shards are there from an earlier run" in capsys.readouterr().err
    prepare(source, tmp_path / "whole", RECIPE, workers=1, progress=False)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of target y whose shards were all done when a person stopped it."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    source = tmp_path / "t.csv"
    source.write_text("smiles,y,z\n" + "".join(f"{'C' * row},{row},{-row}\n" for row in range(1, 9)))
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "_merge", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(source, tmp_path / "store", RECIPE, workers=1, shard_rows=3, progress=False)
    return tmp_path / "store"


def test_another_target_takes_no_labels_from_what_was_stopped(stopped: Path, tmp_path: Path) -> None:
    assert len(list(stopped.glob(".shards/*/*.safetensors"))) == 3
    recipe = Recipe(smiles="smiles", targets=("z",))
    store = prepare(tmp_path / "t.csv", stopped, recipe, workers=1, shard_rows=3, progress=False)
    assert store.targets.flatten().tolist() == [-row for row in range(1, 9)]
    assert store.manifest.target_names == ("z",)


def test_who_may_not_take_over_leaves_what_was_stopped(stopped: Path, tmp_path: Path) -> None:
    before = contents(stopped)
    for targets in (("z",), ("y", "z")):
        recipe = Recipe(smiles="smiles", targets=targets)
        with pytest.raises(ValueError, match=r"was begun from another file, with other settings.*and not finished"):
            prepare(tmp_path / "t.csv", stopped, recipe, workers=1, shard_rows=3, progress=False, takes_over=False)
    assert contents(stopped) == before
    again = prepare(tmp_path / "t.csv", stopped, RECIPE, workers=1, shard_rows=3, progress=False, takes_over=False)
    assert again.targets.flatten().tolist() == list(range(1, 9))


def test_a_full_disk_is_named_and_costs_nothing_that_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = table(tmp_path / "t.csv", 60)
    out = tmp_path / "store"
    prepare(source, tmp_path / "whole", RECIPE, progress=False)
    sync, syncs = os.fsync, 0

    def filling(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 6:  # three shards: each syncs a file and its folder
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", filling)
        with pytest.raises(OSError, match="No space left on device") as error:
            prepare(source, out, RECIPE, workers=1, shard_rows=10, progress=False)
    assert str(error.value).startswith("[Errno 28]")
    assert str(out) in str(error.value)
    left = [path for path in out.rglob("*") if path.is_file()]
    assert len(left) == 3
    assert all(path.suffix == ".safetensors" and path.name.startswith("00000") for path in left)
    prepare(source, out, RECIPE, workers=1, shard_rows=10, progress=False)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("done", range(6))
def test_a_store_of_graphs_that_a_full_disk_interrupted_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Wherever it stopped: before its graphs, its list of rejected graphs, its manifest, or after them."""
    from torch_geometric.data import Data

    source, out = tmp_path / "graphs.pt", tmp_path / "store"
    torch.save([Data(x=torch.ones(2, 1) * n, y=torch.tensor([n / 2])) for n in range(4)], source)
    sync, syncs = os.fsync, 0

    def filling(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > done:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", filling)
        with pytest.raises(OSError, match="No space left on device"):
            prepare(source, out, Recipe(), progress=False)
    assert prepare(source, out, Recipe(), progress=False).targets.flatten().tolist() == [0.0, 0.5, 1.0, 1.5]
    assert sorted(path.name for path in out.iterdir()) == ["graphs.safetensors", "manifest.json", "rejected.csv"]


def test_a_finished_store_is_opened_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = table(tmp_path / "t.csv", 12), tmp_path / "store"
    prepare(source, out, RECIPE)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    capsys.readouterr()
    store = prepare(source, out, RECIPE, workers=2, shard_rows=3)
    assert len(store) == 10
    assert "opened as it is" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_another_recipe_or_source_wants_another_folder(tmp_path: Path) -> None:
    source, out = table(tmp_path / "t.csv", 12), tmp_path / "store"
    prepare(source, out, RECIPE, progress=False)
    before = contents(out)
    with pytest.raises(ValueError) as error:
        prepare(source, out, Recipe("smiles", ("y",), task="regression", policy=MoleculePolicy(salts="largest")))
    assert str(error.value) == (
        f"{out} is another store: task was not given and is now regression; "
        "salts was keep and is now largest; choose another folder"
    )
    table(source, 13)
    with pytest.raises(ValueError, match=r"it was made from another t.csv; choose another folder"):
        prepare(source, out, RECIPE)
    assert contents(out) == before


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", 6)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds 'thesis.tex' and is no store; choose another folder"):
        prepare(source, tmp_path / "mine", RECIPE)
    with pytest.raises(ValueError, match="is a file; choose another folder"):
        prepare(source, source, RECIPE)
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has format None; expected 'tokengt-store-1'; choose another folder"):
        prepare(source, tmp_path / "mine", RECIPE)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "graphs.safetensors").write_bytes(b"of another program")
    with pytest.raises(ValueError, match="is no store"):
        prepare(source, tmp_path / "weights", RECIPE)
    (tmp_path / "empty").mkdir()
    assert len(prepare(source, tmp_path / "empty", RECIPE, progress=False)) == 5


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    source, out = table(tmp_path / "t.csv", 6), tmp_path / "store"
    prepare(source, out, RECIPE, progress=False)
    data = bytearray((out / "graphs.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "graphs.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"graphs.safetensors does not match its checksum.*prepare it again"):
        prepare(source, out, RECIPE)


@pytest.mark.parametrize(
    ("text", "recipe", "sentence"),
    [
        ("smiles,y\n", RECIPE, "has a header but no rows"),
        ("", RECIPE, "is empty"),
        ("smiles,y\nCC,high\nCC,low\n", RECIPE, "'y' holds no number but text such as 'high' on line 2; .* multiclass"),
        ("smiles,y\nCC,2\n", Recipe("smiles", ("y",), task="binary"), "'y' holds no 0 or 1 but text such as '2'"),
        (
            "smiles,y\nCC,1\n",
            Recipe("SMILE", ("y",)),
            "has no column 'SMILE', which the smiles option names; .* smiles, y",
        ),
        (
            "smiles,y\nCC,1\n",
            Recipe("smiles", ("z",)),
            "has no column 'z', which the target option names; .* smiles, y",
        ),
        (
            "smiles,y\nCC,1\n",
            Recipe("smiles", descriptors=("d",)),
            "has no column 'd', which the descriptors option names",
        ),
        ("smiles,y\nCC,1\n", Recipe("smiles", split="s"), "has no column 's', which the split names"),
        ("mol,y\nCC,1\n", Recipe(targets=("y",)), "name the column that holds the SMILES; the columns are mol, y"),
        ("smiles,y\nCC,1\n", Recipe("smiles", level="node"), "the level must be graph"),
        ("name,y\nasp irin,1\nx,2\n", Recipe("name", ("y",)), "none of the 2 rows .* column 'name' .* line 2: "),
        ("a,a\nCC,1\n", Recipe("a"), "two columns named 'a'"),
    ],
)
def test_refusals_are_one_sentence_and_leave_no_folder(
    tmp_path: Path, text: str, recipe: Recipe, sentence: str
) -> None:
    source = tmp_path / "t.csv"
    source.write_text(text)
    with pytest.raises(ValueError, match=sentence) as error:
        prepare(source, tmp_path / "store", recipe, progress=False)
    assert str(source) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": ("y", "y")}, "the target option names column 'y' twice"),
        ({"targets": ("y",), "descriptors": ("y",)}, "column 'y' is a target and a descriptor"),
        ({"targets": ("y", "z"), "task": "multiclass"}, "multiclass takes one target column, got y, z"),
    ],
)
def test_recipes_that_make_no_sense(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Recipe("smiles", **options)  # type: ignore[arg-type]


def test_missing_source_and_senseless_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.csv does not exist"):
        prepare(tmp_path / "nowhere.csv", tmp_path / "store", RECIPE)
    with pytest.raises(ValueError, match="workers is 0; expected at least 1"):
        prepare(table(tmp_path / "t.csv", 1), tmp_path / "store", RECIPE, workers=0)


def test_classes_split_and_descriptors(tmp_path: Path) -> None:
    source = tmp_path / "t.tsv"
    source.write_text("SMILES\tphase\tset\tmass\nC\t10\ttrain\t16\nCC\t9.0\tVAL\t30\nO\t\ttest\t18\nN\t9\tnever\t17\n")
    recipe = Recipe(targets=("phase",), descriptors=("mass",), split="set", task="multiclass")
    store = prepare(source, tmp_path / "store", recipe, shard_rows=2, progress=False)
    (column,) = store.manifest.targets
    assert (column.name, column.classes) == ("phase", ("9", "10"))
    assert store.targets.nan_to_num(-1).tolist() == [[1.0], [0.0], [-1.0]]
    assert store.split is not None
    assert store.split.tolist() == [0, 1, 2]
    assert store.graphs.graph_features is not None
    assert store.graphs.graph_features.tolist() == [[16.0], [30.0], [18.0]]
    assert store.manifest.columns == {"smiles": "SMILES", "targets": ["phase"], "split": "set"}
    assert [row["reason"] for row in rejected(tmp_path / "store")] == [
        "split column 'set' is 'never'; expected train, valid, test or hidden"
    ]


def test_policies_change_the_graphs(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("smiles\n[Na+].C[C@H](N)O\n")
    counts = {}
    for policy in (MoleculePolicy(), MoleculePolicy(salts="largest"), MoleculePolicy(hydrogens="explicit")):
        name = f"{policy.salts}-{policy.hydrogens}"
        counts[name] = prepare(
            source, tmp_path / name, Recipe("smiles", policy=policy), progress=False
        ).graphs.nodes.total
    # CH3, CH, NH2 and OH hold 3 + 1 + 2 + 1 hydrogens.
    assert counts == {"keep-implicit": 5, "largest-implicit": 4, "keep-explicit": 12}


def test_without_targets(tmp_path: Path) -> None:
    store = prepare(table(tmp_path / "t.csv", 6), tmp_path / "store", Recipe("smiles"), progress=False)
    assert store.targets.shape == (5, 0)
    assert Store.open(tmp_path / "store").manifest.targets == ()


def test_from_a_script_on_stdin_without_a_main_guard(tmp_path: Path) -> None:
    """Where multiprocessing's own pools run the script again or cannot find it."""
    code = (
        "from pathlib import Path; from tokengt.data.prepare import prepare; from tokengt.data.manifest import Recipe\n"
        "store = prepare(Path('t.csv'), Path('store'), Recipe('smiles', ('y',)), workers=2, shard_rows=20)\n"
        "print(len(store))"
    )
    table(tmp_path / "t.csv", 60)
    (tmp_path / "csv.py").write_text("raise RuntimeError('a file of the user')")
    run = subprocess.run(
        [sys.executable, "-P", "-"], input=code, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("50\n", "")


def pyg_node_graph(path: Path) -> Path:
    """A path of four nodes, labelled 10, 20 and none, with masks."""
    from torch_geometric.data import Data

    graph = Data(
        x=torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
        edge_index=torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]),
        y=torch.tensor([20.0, 10.0, float("nan"), 10.0]),
        train_mask=torch.tensor([True, False, False, True]),
        val_mask=torch.tensor([False, True, False, False]),
        test_mask=torch.zeros(4, dtype=torch.bool),
    )
    torch.save(graph, path)
    return path


def test_a_table_is_read_from_front_to_back_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to look at it (rows, checksum, encoding) and once to convert it; a finished store costs a checksum."""
    source, out = tmp_path / "t.csv", tmp_path / "store"
    source.write_text("smiles,y,note\n" + "".join(f"CCO,{row},{'x' * 500}\n" for row in range(400)))
    taken, read = 0, _text._Told.readinto

    def counted(self: _text._Told, buffer: object) -> int | None:
        nonlocal taken
        count = read(self, buffer)
        taken += count or 0
        return count

    monkeypatch.setattr(_text, "_BLOCK", 512)
    monkeypatch.setattr(_text._Told, "readinto", counted)
    monkeypatch.setattr("tokengt.data.graph_store.file_checksum", None)
    store = prepare(source, out, RECIPE, workers=1, progress=False)
    monkeypatch.undo()
    assert store.manifest.source.sha256 == file_checksum(source)
    # The header is read twice more: to find what separates the cells, and to read the names of the columns.
    assert 2 <= taken / source.stat().st_size < 2.2
    monkeypatch.setattr("tokengt.data.prepare.survey", None)
    assert len(prepare(source, out, RECIPE, progress=False)) == 400


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.xz", "t.smi", "t.sdf", "t.parquet"])
def test_the_checksum_in_a_manifest_is_that_of_the_file(tmp_path: Path, name: str) -> None:
    source, text = tmp_path / name, "smiles,y\nCCO,1\nCC,2\n"
    if name.endswith(".gz"):  # two members, as gzip files may have
        source.write_bytes(gzip.compress(text[:12].encode()) + gzip.compress(text[12:].encode()))
    elif name.endswith(".xz"):
        source.write_bytes(lzma.compress(text.encode()))
    elif name.endswith(".parquet"):
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame({"smiles": ["CCO", "CC"], "y": [1.0, 2.0]}).to_parquet(source)
    elif name.endswith(".sdf"):
        from rdkit import Chem

        source.write_text("".join(Chem.MolToMolBlock(Chem.MolFromSmiles(s)) + "$$$$\n" for s in ("CCO", "CC")))
    else:
        source.write_text("CCO ethanol\nCC ethane\n")
    recipe = RECIPE if ".csv" in name or name.endswith(".parquet") else Recipe()
    store = prepare(source, tmp_path / "store", recipe, workers=1, progress=False)
    assert (len(store), store.manifest.source.sha256) == (2, file_checksum(source))


def test_a_pyg_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = pyg_node_graph(tmp_path / "graph.pt"), tmp_path / "store"
    recipe = Recipe(targets=("y",), level="node", task="multiclass")
    store = prepare(source, out, recipe)
    assert (store.manifest.level, store.is_molecules, len(store)) == ("node", False, 1)
    assert store.manifest.targets[0].classes == ("10", "20")
    assert store.targets.nan_to_num(-1).flatten().tolist() == [1.0, 0.0, -1.0, 0.0]
    assert store.split is not None
    assert store.split.tolist() == [0, 1, -1, 0]
    assert store.graphs.edge_numbers.local.dtype == torch.uint8
    assert store.graphs.select([0]).edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert store.texts() is None
    assert rejected(out) == []
    prepare(source, out, recipe)
    assert "opened as it is" in capsys.readouterr().err
    prepare(source, tmp_path / "again", recipe)
    assert contents(out) == contents(tmp_path / "again")
    with pytest.raises(ValueError, match=r"task was multiclass and is now not given; choose another folder"):
        prepare(source, out, Recipe(targets=("y",), level="node"))
    with pytest.raises(
        ValueError, match="holds graphs and no table of molecules: a column of SMILES means nothing there"
    ):
        prepare(source, tmp_path / "other", Recipe("smiles", ("y",)))


def test_a_folder_of_networkx_files(tmp_path: Path) -> None:
    import json

    import networkx

    source = tmp_path / "graphs"
    source.mkdir()
    for name, nodes in (("a", 3), ("c", 4)):
        graph = networkx.path_graph(nodes)
        graph.graph["size"] = float(nodes)
        networkx.set_node_attributes(graph, {node: node / 2 for node in graph}, "weight")
        (source / f"{name}.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    (source / "b.json").write_text("not JSON")
    store = prepare(source, tmp_path / "store", Recipe(targets=("size",)), progress=False)
    assert store.targets.flatten().tolist() == [3.0, 4.0]
    assert store.lines.tolist() == [1, 3]
    assert store.graphs.nodes.host.tolist() == [0, 3, 7]
    assert store.graphs.node_features is not None
    assert store.graphs.node_features.flatten().tolist() == [0.0, 0.5, 1.0, 0.0, 0.5, 1.0, 1.5]
    (row,) = rejected(tmp_path / "store")
    assert row["graph"] == "2"
    assert row["reason"].startswith("b.json: it is not JSON")
    assert (store.manifest.source.name, store.manifest.source.rows, store.manifest.rejected) == ("graphs", 3, 1)


def test_which_attributes_became_features_is_said_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import networkx

    source = tmp_path / "graphs"
    source.mkdir()
    for name in "abc":
        graph = networkx.path_graph(3)
        graph.graph["size"] = 3.5
        networkx.set_node_attributes(graph, dict.fromkeys(graph, 2), "label")
        (source / f"{name}.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    (source / "d.json").write_text("{}")
    store = prepare(source, tmp_path / "store", Recipe(targets=("size",)))
    assert "attributes that are features: of nodes label; of edges none" in capsys.readouterr().err
    assert store.manifest.attributes == Attributes(("label",), ())
    assert Store.open(tmp_path / "store").manifest == store.manifest
    with pytest.raises(
        ValueError, match=r"1 of the 4 graphs of .*graphs are rejected.*\(d\.json: it does not hold a graph"
    ):
        prepare(source, tmp_path / "strict", Recipe(targets=("size",)), progress=False, max_rejected=0.2)
    assert not (tmp_path / "strict").exists()


def test_most_rows_rejected_is_refused_unless_told_to_go_on(tmp_path: Path) -> None:
    """A file of numbers read as 0 and 1 left two rows of a hundred to learn from."""
    source, out = tmp_path / "a.csv", tmp_path / "store"
    source.write_text("smiles,y\nC,0.5\nCC,1\nCCC,2.5\n")
    recipe = Recipe(targets=("y",), task="binary")
    sentence = (
        r"2 of the 3 rows of .*a\.csv are rejected, more than the limit of 0\.5 allows \(the first, line 2: target 'y' "
        r"is '0\.5'; expected 0 or 1\); choose other columns or another task, or raise the limit \(max_rejected"
    )
    with pytest.raises(ValueError, match=sentence):
        prepare(source, out, recipe, progress=False)
    assert not out.exists()
    assert len(prepare(source, out, recipe, progress=False, max_rejected=0.7)) == 1
    assert len(prepare(source, out, recipe, progress=False)) == 1  # as it is: it was wanted so
    source.write_text("smiles,y\nC,0.5\nCC,1\n")
    assert len(prepare(source, tmp_path / "half", recipe, progress=False)) == 1
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"max_rejected is .*; expected a share of the rows, from 0 to 1"):
            prepare(source, tmp_path / "other", recipe, max_rejected=wrong)


def test_every_row_is_a_graph_or_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.csv"
    source.write_text('smiles,y,size\nCCO,1,"5 inch\nCCN,2,x\nCCC,3,6"\nC,4,7\nC,5,\nC1CC,1,\nO,>3.69,\nN,5\n')
    store = prepare(source, tmp_path / "store", Recipe(targets=("y",)), workers=1, progress=False, shard_rows=2)
    assert store.lines.tolist() == [3, 4, 5, 6]
    assert [row["line"] for row in rejected(tmp_path / "store")] == ["2", "7", "8", "9"]
    assert "takes in line 3, which is a row of its own" in rejected(tmp_path / "store")[0]["reason"]
    assert (store.manifest.source.rows, store.manifest.rejected) == (8, 4)

    def other_rows(table: tables.Table, shard_rows: int, done: object) -> Iterator[engines.Job]:
        yield engines.Job(0, list(table.rows())[:-1][:shard_rows])

    monkeypatch.setattr("tokengt.data.engines.jobs_of", other_rows)
    for rows in (6, 100):
        with pytest.raises(ValueError, match=r"a\.csv was changed while it was read"):
            prepare(source, tmp_path / "changed", Recipe(targets=("y",)), workers=1, progress=False, shard_rows=rows)


def test_bounds_are_counted_by_target(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("smiles,y,z\n" + "C,1,2\n" * 8 + "CC,>3.69,<1\nCCC,2,<1\nC1CC,>5,1\nCO,high,1\n")
    store = prepare(source, tmp_path / "store", Recipe(targets=("y", "z")), workers=1, progress=False, shard_rows=5)
    assert [target.censored for target in store.manifest.targets] == [2, 2]
    assert Store.open(tmp_path / "store").manifest == store.manifest
    classes = prepare(source, tmp_path / "classes", Recipe(targets=("y",), task="multiclass"), progress=False)
    assert classes.manifest.targets[0].censored == 0


def test_large_molecules_are_rejected_before_rdkit_sees_them(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text(f"smiles\nCCO\n{'C' * 20_000}\n{'C' * 30}\n")
    store = prepare(source, tmp_path / "store", Recipe(), progress=False)
    (row,) = rejected(tmp_path / "store")
    assert (row["line"], row["reason"]) == ("3", "the SMILES has 20,000 atoms; expected at most 1,000 (max_atoms)")
    assert "max_atoms" not in (tmp_path / "store" / "manifest.json").read_text()  # as in stores from before it
    few = Recipe(policy=MoleculePolicy(max_atoms=20))
    assert len(prepare(source, tmp_path / "few", few, progress=False, max_rejected=0.9)) == 1
    assert len(store) == 2
    with pytest.raises(ValueError, match="max_atoms was 1000 and is now 20"):
        prepare(source, tmp_path / "store", few, progress=False)
    with pytest.raises(ValueError, match="max_atoms was 20 and is now 1000"):
        prepare(source, tmp_path / "few", Recipe(), progress=False)


def test_a_pipe_named_like_a_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "a.pt"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} is no regular file"):
            prepare(tmp_path / name, tmp_path / "store", Recipe("smiles", ("y",)) if name == "a.csv" else Recipe())


def test_a_second_process_waits_and_then_finds_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fcntl = pytest.importorskip("fcntl")
    source, out = table(tmp_path / "t.csv", 6), tmp_path / "store"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prepare, source, out, RECIPE)
        time.sleep(0.3)
        assert not waiting.done()
        prepare(source, tmp_path / "first", RECIPE, progress=False)
        for name in ("graphs.safetensors", "rejected.csv", "manifest.json"):
            (tmp_path / "first" / name).rename(out / name)
        os.close(descriptor)
        assert len(waiting.result(timeout=20)) == 5
    printed = capsys.readouterr().err
    assert "waiting for another process that prepares it" in printed
    assert "opened as it is" in printed
    assert sorted(path.name for path in out.iterdir()) == ["graphs.safetensors", "manifest.json", "rejected.csv"]
