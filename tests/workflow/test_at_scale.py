"""Long files: rows are read, featurised and written beside the model, in constant memory, and a kill costs little.

What a user would lose: rows in another order, other digits, hours of work after a kill, or all of the memory.
"""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.command import here, killed_when, succeeded, tokengt
from tests.workflow.small import molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.data import parts, pool, sheets
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.data.tables import open_table
from tokengt.files import parts_folder
from tokengt.inference import Predictor, load
from tokengt.workflow import predicting, stores
from tokengt.workflow import rows as all_rows
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.pace import Pace
from tokengt.workflow.predicting import Predicted, embed_file, predict_file

TEXTS = molecules(40)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return folder / "run"


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return load(run, "cpu")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of seven rows, so that a short file has many of them."""
    monkeypatch.setattr(all_rows, "CHUNK_ROWS", 7)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A hundred rows, some of them bad, with labels."""
    texts = [TEXTS[place % 40] if place % 9 != 4 else "C1CC" for place in range(100)]
    rows = [(f"n{place}", text, place / 10, "" if place % 4 else place) for place, text in enumerate(texts)]
    return write_csv(tmp_path / "new.csv", ("name", "smiles", "y", "z"), rows)


def predicted(run: Predictor | Path, source: Path, out: Path, **more: Any) -> bytes:
    predict_file(run, source, out, quiet=True, device="cpu", **more)
    assert not parts_folder(out).exists()
    return out.read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_many_workers_keep_the_order_and_the_bytes(predictor: Predictor, source: Path, tmp_path: Path) -> None:
    """The same file from one worker and from six, and the same numbers as from a single chunk."""
    one = predicted(predictor, source, tmp_path / "one.csv", workers=1)
    assert one == predicted(predictor, source, tmp_path / "six.csv", workers=6)
    found = read_csv(tmp_path / "one.csv")
    assert [row["name"] for row in found] == [f"n{place}" for place in range(100)]
    assert [bool(row["reason"]) for row in found] == [place % 9 == 4 for place in range(100)]
    texts = [row["smiles"] for row in found]
    expected = predictor.predict(texts).mean[:, 0]
    assert [float(row["predicted_y"] or "nan") for row in found] == pytest.approx(expected, abs=1e-5, nan_ok=True)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_few_chunks_are_on_the_way(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read when there is room for them, however long the file is: two chunks per worker, and few to write."""
    source = write_csv(tmp_path / "long.csv", ("smiles",), [[TEXTS[place % 40]] for place in range(700)])
    taken = put = most = waiting = 0
    stream, put_part = pool.stream, parts.Parts.put

    def counted(*given: Any) -> Iterator[Any]:
        nonlocal taken, most
        for job in stream(*given):
            taken += 1
            most = max(most, taken - put)
            yield job

    def slowly(self: parts.Parts, *given: Any) -> None:
        nonlocal put, waiting
        put_part(self, *given)
        put += 1
        waiting = max(waiting, len(self._waiting))

    monkeypatch.setattr(pool, "stream", lambda *given: counted(*given))
    # A generator that is wrapped cannot be closed, and ends with the test.
    monkeypatch.setattr(all_rows, "closing", _closing)
    monkeypatch.setattr(parts.Parts, "put", slowly)
    predicted(predictor, source, tmp_path / "out.csv", workers=2)
    assert taken == put == 100
    # What is in the workers' hands and the one that the model has.
    assert most <= 2 * 2 + 1
    assert waiting <= 4


class _closing:
    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __enter__(self) -> Any:
        return self.thing

    def __exit__(self, *error: object) -> None:
        if hasattr(self.thing, "close"):
            self.thing.close()


def long_table(path: Path, rows: int = 9000) -> Path:
    texts = ("CO", "CCN", "c1ccccc1", "C1CC", "CC(=O)O")
    return write_csv(path, ("id", "smiles"), [(place, texts[place % 5]) for place in range(rows)])


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_killed_call_goes_on_and_ends_in_the_same_bytes(run: Path, tmp_path: Path, verb: str) -> None:
    """``kill -9`` when some parts are done; the same command keeps them."""
    source, out = long_table(tmp_path / "long.csv"), tmp_path / ("out.csv" if verb == "predict" else "out.npz")
    words = (verb, run, source, "--device", "cpu", "--workers", "2", "--out")
    succeeded(tokengt(*words, tmp_path / f"whole{out.suffix}"))
    whole = (tmp_path / f"whole{out.suffix}").read_bytes()
    home = parts_folder(out)
    killed_when(lambda: any(home.glob("*/*.piece")), *words, out)
    done = list(home.glob("*/*.piece"))
    assert done
    assert not out.exists()
    again = succeeded(tokengt(*words, out))
    assert "rows are there from an earlier run, which goes on" in again.stderr
    assert out.read_bytes() == whole
    assert not home.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name, f"whole{out.suffix}"])


def stopped(run: Predictor, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> int:
    """Stop a call by Ctrl-C when four parts are put; returns how many are kept."""
    count = 0

    def interrupted(self: parts.Parts, *given: Any) -> None:
        nonlocal count
        if count == 4:
            raise KeyboardInterrupt
        count += 1
        self._keep(parts.put_piece(self.folder, given[0], self.sheet, *given[1:]))

    with monkeypatch.context() as patch:
        patch.setattr(parts.Parts, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            predict_file(run, source, out, quiet=True, **more)
    return len(list(parts_folder(out).glob("*/*.piece")))


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_parts_of_other_inputs_or_options_are_not_taken(
    predictor: Predictor,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another file, another option, --force: each begins anew, and one sentence says so; the same goes on."""
    whole = predicted(predictor, source, tmp_path / "whole.csv", workers=2)
    other = write_csv(tmp_path / "other.csv", ("smiles",), [[text] for text in TEXTS])
    out = tmp_path / "out.csv"
    anew, goes_on = "a stopped run with other inputs or options left parts; they are removed", "from an earlier run"
    calls: list[tuple[Path, dict[str, Any]]] = [(source, {"draws": 2}), (other, {}), (source, {"overwrite": True})]
    for given, more in calls:
        assert stopped(predictor, source, out, monkeypatch) == 4
        capsys.readouterr()
        predict_file(predictor, given, out, **more)
        said = capsys.readouterr().err
        assert anew in said
        assert goes_on not in said
        assert not parts_folder(out).exists()
        out.unlink()
    assert stopped(predictor, source, out, monkeypatch) == 4
    capsys.readouterr()
    predict_file(predictor, source, out)
    assert f"28 rows are there {goes_on}, which goes on" in capsys.readouterr().err
    assert out.read_bytes() == whole
    # Begun with overwrite and called again with it, it is the same call.
    assert stopped(predictor, source, out, monkeypatch, overwrite=True) == 4
    predict_file(predictor, source, out, overwrite=True)
    assert goes_on in capsys.readouterr().err
    assert out.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_damaged_part_is_made_again_and_another_run_takes_none(
    run: Path, predictor: Predictor, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = predicted(predictor, source, tmp_path / "whole.csv"), tmp_path / "out.csv"
    assert stopped(predictor, source, out, monkeypatch) == 4
    first = min(parts_folder(out).glob("*/*.piece"))
    first.write_bytes(first.read_bytes()[:-1])
    assert predicted(predictor, source, out) == whole
    out.unlink()
    assert stopped(predictor, source, out, monkeypatch) == 4
    changed = load(run, "cpu")
    with torch.no_grad():
        next(iter(changed.members[0].model.parameters())).add_(0.1)
    assert predicted(changed, source, out) != whole


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every worker process that the test starts."""
    started: list[subprocess.Popen[bytes]] = []
    start = pool.start_worker

    def recorded() -> subprocess.Popen[bytes]:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(pool, "start_worker", recorded)
    return started


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("which", ["reader", "featuriser", "writer"])
def test_a_worker_that_dies_is_one_sentence_and_costs_little(
    predictor: Predictor,
    tmp_path: Path,
    workers: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    which: str,
) -> None:
    """No call waits for ever for a process that the kernel killed; what was done is kept."""
    # Rows so long that a reader cannot be far ahead: their pipe is full.
    rows = [(text, "long" * 5000) for text in TEXTS] * 2
    source = write_csv(tmp_path / "wide.csv", ("smiles", "note"), rows)
    whole, out = predicted(predictor, source, tmp_path / "whole.csv", workers=2), tmp_path / "out.csv"
    workers.clear()
    put = parts.Parts.put

    def deadly(self: parts.Parts, *given: Any) -> None:
        put(self, *given)
        if len(self.done) >= 3:
            # Two featurisers and a reader are started first, whichever is asked first, then two writers.
            for worker in workers[3:] if which == "writer" else workers[:3]:
                if which != "reader" or worker is workers[2]:
                    worker.send_signal(signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(parts.Parts, "put", deadly)
        with pytest.raises(ChildProcessError) as died:
            predict_file(predictor, source, out, quiet=True, workers=2)
    sentence = str(died.value)
    assert "a worker process died (signal 9) while it" in sentence
    assert "kept: run the same again" in sentence
    assert "\n" not in sentence
    assert all(worker.poll() is not None for worker in workers)
    assert list(parts_folder(out).glob("*/*.piece"))
    assert predicted(predictor, source, out, workers=2) == whole


@pytest.mark.usefixtures("small_chunks")
def test_what_goes_wrong_in_a_worker_is_said_here(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes under the hands of its reader; a part that cannot be written."""
    source = write_csv(tmp_path / "new.csv", ("smiles",), [[TEXTS[place % 40]] for place in range(100)])
    survey = type(open_table(source)).survey
    with monkeypatch.context() as patch:
        patch.setattr("tokengt.data.tables.Table.survey", lambda self: survey(self)._replace(sha256="0"))
        with pytest.raises(ValueError, match=r"new\.csv was changed while it was read"):
            predict_file(predictor, source, tmp_path / "out.csv", quiet=True)
    assert not parts_folder(tmp_path / "out.csv").exists()
    assert not (tmp_path / "out.csv").exists()
    # A worker's own exception comes back as it is: here no folder can be made where a file is in the way.
    kept = parts.Parts.__init__

    def elsewhere(self: parts.Parts, folder: Path, *given: Any) -> None:
        kept(self, folder, *given)
        self.folder = source / "in the way"

    monkeypatch.setattr(parts.Parts, "__init__", elsewhere)
    with pytest.raises(NotADirectoryError, match="in the way"):
        predict_file(predictor, source, tmp_path / "out.csv", quiet=True)


def test_a_second_process_waits_and_then_finds_the_file(run: Path, source: Path, tmp_path: Path) -> None:
    from tokengt.files import folder_lock

    out = tmp_path / "out.csv"
    with folder_lock(parts_folder(out), lambda: None):
        second = subprocess.Popen(
            [sys.executable, "-m", "tokengt.cli", "predict", str(run), str(source), "--out", str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        assert "waiting for another process that writes it" in second.stderr.readline()
        out.write_text("the first one's")
    _, said = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"{out} exists" in said
    assert out.read_text() == "the first one's"
    assert not parts_folder(out).exists()


@pytest.mark.usefixtures("small_chunks")
def test_a_store_gives_what_its_file_gives(predictor: Predictor, source: Path, tmp_path: Path) -> None:
    """Digit by digit, with the rows that could not be read at their places; predictions, vectors and metrics."""
    store = tmp_path / "store"
    prepare(source, store, Recipe(smiles="smiles", targets=("y", "z")), workers=1, progress=False)
    assert predict_file(predictor, source, tmp_path / "file.csv", quiet=True, draws=2) == Predicted(100, 11)
    assert predict_file(predictor, store, tmp_path / "store.csv", quiet=True, draws=2) == Predicted(100, 11)
    from_file, from_store = read_csv(tmp_path / "file.csv"), read_csv(tmp_path / "store.csv")
    columns = ["predicted_y", "predicted_z", "std_y", "std_z", "reason"]
    assert list(from_store[0]) == ["line", "smiles", *columns]
    for place, (ours, theirs) in enumerate(zip(from_store, from_file, strict=True)):
        assert (ours["line"], ours["smiles"]) == (str(place + 2), theirs["smiles"])
        assert [ours[name] for name in columns] == [theirs[name] for name in columns]
    assert evaluate(predictor, store, quiet=True) == evaluate(predictor, source, quiet=True)
    for name, given in (("file", source), ("store", store)):
        assert embed_file(predictor, given, tmp_path / f"{name}.npz", quiet=True) == Predicted(100, 11)
    assert (tmp_path / "file.npz").read_bytes() == (tmp_path / "store.npz").read_bytes()
    (store / "rejected.csv").write_text("edited")
    assert predict_file(predictor, store, tmp_path / "few.csv", quiet=True) == Predicted(89, 0)
    with pytest.raises(ValueError, match="is a store and no table of molecules: a column of SMILES means nothing"):
        predict_file(predictor, store, tmp_path / "named.csv", smiles="smiles", quiet=True)


def graph_file(path: Path, level: str, count: int = 24) -> Path:
    data = pytest.importorskip("torch_geometric.data")
    graphs = []
    for place in range(count):
        ring = torch.arange(4 + place % 3)
        edges = torch.stack([ring, ring.roll(-1)])
        rows = {"graph": 1, "node": len(ring), "edge": 2 * len(ring)}[level]
        both = torch.cat([edges, edges.flip(0)], 1)
        x = torch.linspace(0, 1 + place, len(ring))[:, None]
        graphs.append(data.Data(x=x, edge_index=both, y=torch.arange(rows) / rows + place))
    torch.save(graphs, path)
    return path


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_a_store_of_graphs_gives_the_bytes_of_its_file(level: str, tmp_path: Path) -> None:
    source = graph_file(tmp_path / "graphs.pt", level)
    options = TrainOptions(quiet=True, workers=1, level=level)  # type: ignore[arg-type]
    own = train_small(source, tmp_path / "run", "y", options=options)
    prepare(source, tmp_path / "store", Recipe(targets=("y",), level=level), progress=False)  # type: ignore[arg-type]
    whole = predicted(own, source, tmp_path / "file.csv")
    assert predicted(own, tmp_path / "store", tmp_path / "store.csv") == whole
    assert len(read_csv(tmp_path / "file.csv")) == Store.open(tmp_path / "store").manifest.counts["rows"]
    for name, given in (("a", source), ("b", tmp_path / "store")):
        embed_file(own, given, tmp_path / f"{name}.csv", quiet=True)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert evaluate(own, tmp_path / "store", quiet=True) == evaluate(own, source, quiet=True)


def test_large_graphs_of_a_store_come_fewer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by nodes and edges, no chunk is larger than allowed, and the rows are the same."""
    store = prepare(graph_file(tmp_path / "g.pt", "node"), tmp_path / "s", Recipe(targets=("y",)), progress=False)
    (whole,) = stores.cuts_of(store, [], 2048)
    assert (whole.places.start, whole.places.stop) == (0, 24)
    monkeypatch.setattr(stores, "_LARGEST_CHUNK", 40)
    cuts = stores.cuts_of(store, [], 2048)
    assert [cut.places.start for cut in cuts[1:]] == [cut.places.stop for cut in cuts[:-1]]
    assert (cuts[0].places.start, cuts[-1].places.stop) == (0, 24)
    sizes = (store.graphs.nodes.host_lengths + store.graphs.edges.host_lengths).tolist()
    assert all(sum(sizes[cut.places]) <= 40 for cut in cuts)
    assert [cut.number for cut in cuts] == list(range(len(cuts)))
    monkeypatch.setattr(stores, "_LARGEST_CHUNK", 1)
    assert [cut.places.stop - cut.places.start for cut in stores.cuts_of(store, [], 2048)] == [1] * 24


def test_a_run_on_a_list_of_several_targets_is_evaluated(tmp_path: Path) -> None:
    """Two columns of y are two targets, called y_0 and y_1; a list, a file and a store of them give the same."""
    data = pytest.importorskip("torch_geometric.data")
    ring = torch.arange(4)
    edges = torch.stack([ring, ring.roll(-1)])
    graphs = [data.Data(x=torch.rand(4, 2), edge_index=edges, y=torch.rand(1, 2)) for _ in range(16)]
    run = train_small(graphs, tmp_path / "run", options=TrainOptions(quiet=True, workers=1, level="graph"))
    assert run.task.names == ("y_0", "y_1")
    found = evaluate(run, graphs, quiet=True)
    assert found.rows == 16
    errors = run.predict(graphs).mean - torch.cat([graph.y for graph in graphs]).numpy()
    assert found.metrics["mae/y_1"] == pytest.approx(np.abs(errors[:, 1]).mean(), rel=1e-4)
    torch.save(graphs, tmp_path / "g.pt")
    assert evaluate(run, tmp_path / "g.pt", quiet=True).metrics == pytest.approx(found.metrics, rel=1e-4)
    wide = [data.Data(x=graph.x, edge_index=edges, y=torch.rand(1, 3)) for graph in graphs]
    with pytest.raises(ValueError, match="the labels are y_0, y_1, y_2; expected y_0, y_1"):
        evaluate(run, wide, quiet=True)
    with pytest.raises(ValueError, match="PyG graphs have one attribute of labels; target names y, z"):
        train_small(graphs, tmp_path / "other", ("y", "z"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("small_chunks")
def test_ray_gives_the_same_bytes(predictor: Predictor, source: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    whole = predicted(predictor, source, tmp_path / "here.csv", workers=1)
    metrics = evaluate(predictor, source, quiet=True)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        assert predicted(predictor, source, tmp_path / "there.csv", engine="ray") == whole
        assert evaluate(predictor, source, engine="ray", quiet=True) == metrics
    finally:
        ray.shutdown()


def test_what_workers_import_is_free_of_torch() -> None:
    code = "import sys, tokengt.data.parts, tokengt.data.worker; print('torch' in sys.modules, 'rdkit' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


def test_vectors_in_pieces_are_the_bytes_that_numpy_writes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(50, 3)).astype(np.float32)
    reasons = {3: "é: a long reason", 30: "short"}
    values[list(reasons)] = np.nan
    sheet, paths = sheets.VectorNpz(("smiles",), 3), []
    for number, first in enumerate(range(0, 50, 20)):
        own = slice(first, min(first + 20, 50))
        told = {place - first: why for place, why in reasons.items() if own.start <= place < own.stop}
        lines = np.arange(own.start, own.stop) + 2
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(sheet.piece(sheets.Answers(sheets.Numbers(lines[:, None]), lines, values[own], told)))
    whole = io.BytesIO()
    with (tmp_path / "joined").open("wb") as joined:
        sheet.join(paths, joined)
    np.savez_compressed(
        whole,
        vectors=values,
        valid=~np.isnan(values[:, 0]),
        lines=np.arange(50) + 2,
        reasons=np.array(list(reasons.values()), dtype=np.str_),
    )
    assert (tmp_path / "joined").read_bytes() == whole.getvalue()


def test_the_pace_names_the_limit() -> None:
    pace = Pace("featurisation", 2, rows=1000, began=0.0)
    pace.spent |= {"reading": 6.0, "model": 3.0, "writing": 1.0}
    pace.ended = 10.0
    assert (
        str(pace) == "1,000 rows in 10.0 s, 100 rows/s; featurisation was the limit: the model waited 70% of the time"
    )
    pace.spent["model"] = 7.5
    assert str(pace).endswith("; the model was the limit: it worked 75% of the time")
    pace.spent["writing"] = 9.0
    assert str(pace).endswith("; writing was the limit: the model waited 25% of the time")


def test_building_the_kernels_of_a_gpu_is_no_share_of_the_pace() -> None:
    """The first rows take a GPU seconds, after which it may wait for rows all the time."""
    pace = Pace("featurisation", 2, rows=1000, began=0.0)
    pace.spent |= {"reading": 4.0, "model": 5.0}
    pace.has_started()
    pace.spent["model"] += 1.0
    pace.ended = 10.0
    assert pace.limit == "reading"
    assert str(pace) == (
        "1,000 rows in 10.0 s (5 s of them to start the model), 100 rows/s; "
        "featurisation was the limit: the model waited 80% of the time"
    )


@pytest.mark.usefixtures("small_chunks")
def test_the_start_of_a_gpu_is_its_first_chunks(
    predictor: Predictor, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = {}
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(predicting, "_on_gpu", lambda _, device=device: device == "gpu")
        paces[device] = predict_file(predictor, source, tmp_path / f"{device}.csv", quiet=True, workers=1).pace
    cpu, gpu = paces["cpu"], paces["gpu"]
    assert cpu is not None
    assert gpu is not None
    assert cpu.starting == 0
    assert gpu.starting > 0
    assert gpu.spent["model"] > 0


@pytest.mark.parametrize(
    ("cores", "advice"), [(9, "; more --workers help"), (1, "; all cores read: more of them, or --engine ray, help")]
)
def test_the_command_says_what_helps(
    run: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, advice: str
) -> None:
    monkeypatch.setattr(all_rows, "CHUNK_ROWS", 20)
    monkeypatch.setattr(Pace, "limit", "reading")
    monkeypatch.setattr(Pace, "cores", cores)
    words = ("predict", run, source, "--out", tmp_path / "out.csv", "--workers", "2")
    first, second = succeeded(here(*words)).stdout.splitlines()
    assert first.startswith(f"{tmp_path / 'out.csv'}: 100 rows, 11 of which could not be read")
    assert second.startswith("100 rows in ")
    assert second.endswith(advice)


@pytest.mark.parametrize("call", [predict_file, embed_file, evaluate])
def test_workers_and_engine_are_checked_first(
    call: Callable[..., object], predictor: Predictor, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outs = {} if call is evaluate else {"out": tmp_path / "out.csv"}
    with pytest.raises(ValueError, match="workers is 0; expected at least 1"):
        call(predictor, source, workers=0, **outs)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'tokengt\[ray\]'"):
        call(predictor, source, engine="ray", **outs)
    assert os.listdir(tmp_path) == ["new.csv"]


def test_a_store_is_predicted_where_rdkit_is_not_installed(run: Path, source: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prepare(source, store, Recipe(smiles="smiles", targets=("y", "z")), workers=1, progress=False)
    code = (
        "import sys; sys.modules['rdkit'] = None\n"
        "from tokengt.cli import main\n"
        "run, store, out = sys.argv[1:]\n"
        "assert main(['predict', run, store, '--out', out, '--device', 'cpu']) == 0\n"
        "assert main(['evaluate', run, store, '--device', 'cpu']) == 0\n"
    )
    out = tmp_path / "out.csv"
    subprocess.run([sys.executable, "-c", code, run, store, out], check=True, capture_output=True)
    assert out.read_bytes() == predicted(run, store, tmp_path / "here.csv")
