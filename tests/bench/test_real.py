"""The real commands, timed from outside: what is read off the clock, and what happens when a command is refused."""

import ctypes
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.bench.test_run import HOUSE_KEYS
from tests.cli.command import here, succeeded
from tokengt.bench import RealConfig, RealRow, bench_real
from tokengt.bench.commands import Ran, run_command
from tokengt.bench.epochs import Epochs, EpochWatch
from tokengt.bench.gpu_memory import GpuMemory
from tokengt.bench.real_report import real_lines
from tokengt.bench.report import keep_rows, to_json

ROW = RealRow(
    shape="esol",
    device="cpu",
    system="tokengt",
    phase="real-train",
    layout="directed",
    dtype="float32",
    dropout=0.1,
    graphs_per_s=500.0,
    tokens_per_s=14_000.0,
    peak_share=0.2,
    memory_gib=None,
    ratio_to_padded=None,
    commit="abc",
    bench_graphs_per_s=1000.0,
    share_of_bench=0.5,
    seconds=20.0,
    start_seconds=4.0,
    first_epoch_seconds=7.0,
    epoch_seconds=2.0,
    end_seconds=5.0,
    epochs=5,
    graphs=1000,
    batch=32,
    model="TokenGT (tiny)",
    options="--set training.ema=0.9",
    host_gib=0.5,
    peak_tflops=0.1,
    threads=1,
    torch="2.0",
)


def write(file: Path, records: list[dict[str, Any]], when: float) -> None:
    """As a run does it: a new file under the old name."""
    new = file.with_suffix(".new")
    new.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(new, (when, when))
    new.replace(file)


def test_epochs_end_when_their_lines_are_written(tmp_path: Path) -> None:
    """A run that was looked at too late for its second epoch still has the rate of those after the first."""
    file = tmp_path / "metrics.jsonl"
    watch = EpochWatch(file)
    watch.look()
    with pytest.raises(ValueError, match=r"no epoch of .* was seen to end"):
        watch.epochs()
    for count, when in ((0, 100.0), (1, 110.0), (3, 114.0), (4, 116.5)):
        write(file, [{"epoch": epoch} for epoch in range(count)], when)
        watch.look()
        watch.look()
    epochs = watch.epochs()
    assert epochs == Epochs(100.0, ((110.0, 1), (114.0, 3), (116.5, 4)))
    assert (epochs.count, epochs.first_end, epochs.end) == (4, 110.0, 116.5)
    assert epochs.seconds_each == 6.5 / 3


def test_one_epoch_alone_is_timed_from_the_beginning() -> None:
    assert Epochs(100.0, ((103.0, 1),)).seconds_each == 3.0


def test_seconds_that_a_run_writes_down_itself_are_believed(tmp_path: Path) -> None:
    """The file may be written late, or be looked at late; what the loop's own clock says is better."""
    file = tmp_path / "metrics.jsonl"
    watch = EpochWatch(file)
    write(file, [], 100.0)
    watch.look()
    write(file, [{"epoch": 1, "seconds": 4.0}, {"epoch": 2, "seconds": 5.0}], 109.0)
    watch.look()
    assert watch.epochs() == Epochs(100.0, ((104.0, 1), (105.0, 2)))


def test_epochs_that_ended_before_they_were_seen_to_begin_have_no_rate(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, [{"epoch": 1}], 100.0)
    watch = EpochWatch(file)
    watch.look()
    with pytest.raises(ValueError, match=r"were too short to be timed; take more data"):
        watch.epochs()


def test_training_is_told_even_where_prediction_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of training would be measured for nothing."""

    def run(arguments: list[Any], say: Any, look: Any = lambda: None, *, gpu: bool = False) -> Ran:
        if arguments[0] == "predict":
            raise ValueError("tokengt predict: no")
        began, done = time.time(), Event()

        def watch() -> None:
            while not done.wait(0.005):
                look()

        eyes = Thread(target=watch)
        eyes.start()
        try:
            succeeded(here(*arguments))
        finally:
            done.set()
            eyes.join()
        look()
        return Ran(began, time.time() - began, 1.0, None)

    table = tmp_path / "few.csv"
    table.write_text("smiles,y\n" + "".join(f"{'C' * n}O,{n}\n" for n in range(1, 31)))
    monkeypatch.setattr("tokengt.bench.real.run_command", run)
    settings = {"model.dim": "16", "model.encoder.num_layers": "1", "model.encoder.num_heads": "2"}
    config = RealConfig(table, "cpu", "small", settings, epochs=2, batch=8, target=("y",), steps=1, rounds=1)
    rows = bench_real(config)
    row = next(rows)
    assert (row.phase, row.graphs, row.epochs, row.batch, row.shape) == ("real-train", 24, 2, 8, "few")
    assert row.graphs_per_s == pytest.approx(24 / (row.epoch_seconds or 0))
    with pytest.raises(ValueError, match=r"^tokengt predict: no$"):
        next(rows)


def test_a_command_is_timed_heard_and_measured() -> None:
    heard: list[str] = []
    looks: list[float] = []
    before = time.time()
    ran = run_command(["presets"], heard.append, lambda: looks.append(time.monotonic()))
    assert before <= ran.began <= before + 1
    assert 0.05 < ran.seconds < 60
    # A Python with our package has tens of megabytes, and no preset is loaded to be listed.
    assert 0.01 < ran.host_gib < 4
    assert ran.gpu_gib is None
    assert len(looks) > 2


def test_a_refusal_is_the_commands_own_sentence(tmp_path: Path) -> None:
    heard: list[str] = []
    with pytest.raises(ValueError, match=r"^tokengt info: .*nothing does not exist"):
        run_command(["info", tmp_path / "nothing"], heard.append)
    assert heard == []


def test_a_command_that_breaks_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("tokengt.bench.commands.sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="tokengt presets ended with status 1: it said nothing"):
        run_command(["presets"], lambda line: None)


class FakeDriver:
    """The driver's library, as far as it is asked: the GPU is 1, 5, then 3 GiB full."""

    def __init__(self) -> None:
        self.used = [1, 5, 3]
        self.asked: list[object] = []

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, place: int, handle: Any) -> int:
        self.asked.append(place)
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        self.asked.append(name)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used = self.used.pop(0) * 2**30
        return 0


@pytest.mark.parametrize(("visible", "asked"), [(None, 0), ("3,1", 3), ("GPU-7", b"GPU-7")])
def test_the_memory_of_another_process_on_the_gpu(
    visible: str | None, asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before is not charged to the command, and the fullest moment counts."""
    driver = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    memory = GpuMemory.watch()
    assert memory is not None
    memory.look()
    memory.look()
    assert memory.gib == 4.0
    assert driver.asked == [asked]


def test_without_a_driver_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert GpuMemory.watch() is None


def test_the_commands_are_those_that_a_person_would_type(tmp_path: Path) -> None:
    config = RealConfig(
        Path("my data.csv.gz"),
        "cpu",
        "small",
        {"training.ema": "0.9"},
        epochs=3,
        batch=64,
        smiles="s",
        target=("y", "z"),
    )
    assert config.name == "my_data"
    assert config.train_command(tmp_path) == [
        *("train", Path("my data.csv.gz"), "--out", tmp_path, "--epochs", "3", "--seed", "0", "--device", "cpu"),
        *("--preset", "small", "--batch-size", "64", "--set", "training.ema=0.9", "--smiles", "s"),
        *("--target", "y", "z"),
    ]
    assert config.predict_command(tmp_path, Path("out")) == [
        *("predict", tmp_path, Path("my data.csv.gz"), "--out", Path("out"), "--device", "cpu", "--smiles", "s")
    ]
    plain = RealConfig(Path("a"), "cpu", phases=("infer",))
    assert plain.options == []
    # A model to predict with is trained as shortly as can be.
    assert plain.train_command(tmp_path)[4:6] == ["--epochs", "1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "epochs is 0; expected at least 1"),
        ({"batch": -1}, "batch is -1; expected at least 0"),
        ({"steps": -1}, "steps is -1; expected at least 0"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"phases": ()}, "expected 'train', 'infer' or both"),
        (
            {"settings": {"training.epochs": "3"}},
            "--set training.epochs is 3; expected the option of the bench, --epochs",
        ),
    ],
)
def test_wishes_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(RealConfig(Path("a"), "cpu"), **changes)


def test_a_person_reads_where_the_seconds_went() -> None:
    predicted = replace(
        ROW, phase="real-predict", start_seconds=None, first_epoch_seconds=None, epoch_seconds=None, end_seconds=None
    )
    text = real_lines([ROW, predicted])
    assert text[0] == "esol, TokenGT (tiny), batch 32, float32; options: --set training.ema=0.9"
    assert text[4].split()[:4] == ["real-train", "500", "1,000", "50.0%"]
    assert text[-2] == (
        "tokengt train: 20.0 s from start to end for 1,000 training graphs: 4.0 s until training began, "
        "3 s the first epoch (done after 7.0 s), 4 more of 2 s each, 5.0 s for results"
    )
    assert text[-1] == "tokengt predict: 20.0 s from start to end for 1,000 graphs"


def test_rows_are_kept_like_all_others(tmp_path: Path) -> None:
    """Another option is another measurement; the same again takes the old one's place."""
    file = tmp_path / "bench-esol-cpu.json"
    keep_rows(file, [ROW])
    keep_rows(file, [replace(ROW, options=""), replace(ROW, graphs_per_s=2.0)])
    kept = json.loads(file.read_text())
    assert [(row["options"], row["graphs_per_s"]) for row in kept] == [("", 500.0), (ROW.options, 2.0)]
    assert tuple(to_json([ROW])[0])[: len(HOUSE_KEYS)] == HOUSE_KEYS
