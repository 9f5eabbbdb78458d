"""Where shards are converted changes nothing but the time it takes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tokengt.data import engines, pool
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.shards import Column, ShardArrays, ShardRecipe, convert_shard
from tokengt.data.tables import Row, open_table

SMILES = ["CO", "c1ccccc1", "C(", "CC(=O)O", "[Na+].[Cl-]", "N"]


def jobs(count: int) -> Iterator[engines.Job]:
    for number in range(count):
        yield engines.Job(number, [Row(10 * number + place, (text,)) for place, text in enumerate(SMILES, 1)])


@pytest.fixture
def plan(tmp_path: Path) -> engines.Work[ShardArrays]:
    path = tmp_path / "table.csv"
    path.write_text("smiles\n")
    return partial(convert_shard, recipe=ShardRecipe.of(Recipe(smiles="smiles"), open_table(path)))


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


def same(one: ShardArrays, other: ShardArrays) -> bool:
    return one.rejected == other.rejected and all(
        np.array_equal(array, other.arrays[name]) for name, array in one.arrays.items()
    )


def test_processes_give_what_this_process_gives(
    plan: engines.Work[ShardArrays], workers: list[subprocess.Popen[bytes]]
) -> None:
    here = dict(engines.in_this_process(jobs(7), plan))
    from_workers = dict(engines.in_processes(jobs(7), plan, 2))
    assert here.keys() == from_workers.keys() == set(range(7))
    assert all(same(here[number], from_workers[number]) for number in here)
    assert here[3].rejected[0].line == 33
    assert [worker.poll() is not None for worker in workers] == [True, True]


def test_something_is_done_once_while_workers_convert(plan: engines.Work[ShardArrays]) -> None:
    """After their first shards are on the way; not in this process alone, and not afterwards."""
    done: list[str] = []
    with engines.meanwhile(lambda: done.append("here")):
        assert len(list(engines.in_this_process(jobs(3), plan))) == 3
        assert done == []
        assert len(list(engines.in_processes(jobs(9), plan, 2))) == 9
        assert done == ["here"]
        assert len(list(engines.in_processes(jobs(3), plan, 2))) == 3
    assert len(list(engines.in_processes(jobs(3), plan, 2))) == 3
    assert done == ["here"]


def test_few_shards_are_on_the_way(plan: engines.Work[ShardArrays]) -> None:
    """Rows are read when there is room for them: memory does not grow with the file."""
    taken, most = 0, 0

    def counted() -> Iterator[engines.Job]:
        nonlocal taken
        for job in jobs(20):
            taken += 1
            yield job

    for done, _ in enumerate(engines.in_processes(counted(), plan, 2)):
        most = max(most, taken - done)
    assert taken == 20
    assert most <= 4


def test_a_dead_worker_is_one_sentence(plan: engines.Work[ShardArrays], workers: list[subprocess.Popen[bytes]]) -> None:
    def deadly() -> Iterator[engines.Job]:
        for job in jobs(6):
            if job.number == 2:
                for worker in workers:
                    worker.kill()
                    worker.wait()
            yield job

    with pytest.raises(ChildProcessError) as died:
        list(engines.in_processes(deadly(), plan, 2))
    sentence = str(died.value)
    assert "a worker process died (signal 9) while it converted rows from line" in sentence
    assert "the shards that are done are kept: run the same again" in sentence
    assert "\n" not in sentence


def test_stopping_early_ends_the_workers(
    plan: engines.Work[ShardArrays], workers: list[subprocess.Popen[bytes]]
) -> None:
    """What Ctrl-C does: the generator is closed in the middle."""
    results = engines.in_processes(jobs(50), plan, 2)
    next(results)
    results.close()
    assert [worker.poll() for worker in workers] == [-9, -9]


def test_an_error_in_a_worker_comes_back(plan: engines.Work[ShardArrays]) -> None:
    recipe = plan.keywords["recipe"]  # type: ignore[attr-defined]
    wrong = partial(convert_shard, recipe=replace(recipe, text=Column("smiles", 5)))
    with pytest.raises(IndexError) as error:
        list(engines.in_processes(jobs(2), wrong, 2))
    assert "convert_shard" in error.value.__notes__[0]


def test_a_worker_imports_no_torch_and_ends_with_its_parent() -> None:
    code = "import sys, tokengt.data.worker; print('torch' in sys.modules, 'rdkit' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
    parent = subprocess.Popen(
        [sys.executable, "-c", "from tokengt.data.engines import *; from tokengt.data.pool import start_worker\n"
         "print(start_worker().pid, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_unknown_engine_and_missing_ray_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="engine is 'dask'; expected processes or ray"):
        engines.check("dask")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'tokengt\[ray\]'"):
        engines.check("ray")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_ray_nodes_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    source = tmp_path / "table.csv"
    source.write_text("smiles,y\n" + "".join(f"{SMILES[n % 6]},{n}\n" for n in range(240)))
    recipe = Recipe(smiles="smiles", targets=("y",))
    prepare(source, tmp_path / "here", recipe, workers=1, progress=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        prepare(source, tmp_path / "there", recipe, engine="ray", shard_rows=10)
        # Without waiting, the first node could convert all shards before the second one has started a worker.
        assert re.search(r"Ray converted 24 shards on [12] nodes: \d", capsys.readouterr().err)
        start_workers(nodes=2)
        prepare(source, tmp_path / "spread", recipe, engine="ray", shard_rows=10)
        assert "Ray converted 24 shards on 2 nodes" in capsys.readouterr().err
    finally:
        ray.shutdown()
        cluster.shutdown()
    for store in ("there", "spread"):
        assert sorted(os.listdir(tmp_path / store)) == ["graphs.safetensors", "manifest.json", "rejected.csv"]
        for name in os.listdir(tmp_path / "here"):
            assert (tmp_path / "here" / name).read_bytes() == (tmp_path / store / name).read_bytes(), name


def start_workers(nodes: int) -> None:
    """Connect, and wait until every node has run something: what comes next finds them all ready."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(log_to_driver=False, logging_level="ERROR")
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    assert len(alive) == nodes
    task = ray.remote(lambda: None)
    placed = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
    ray.get([task.options(num_cpus=1, scheduling_strategy=strategy).remote() for strategy in placed])


@pytest.mark.parametrize(
    ("rows", "slow", "size"),
    [(14, True, 128), (1_128, True, 128), (10_000, True, 157), (10**7, True, 4096), (14, False, 4096)],
)
def test_rows_that_take_long_are_shared_out_in_smaller_pieces(rows: int, slow: bool, size: int) -> None:
    """1,128 molecules with descriptors are five seconds of one core; in one piece, 15 of 16 cores would look on."""
    assert engines.rows_per_shard(rows, 4096, slow=slow) == size
