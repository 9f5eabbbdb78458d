"""What makes two runs the same."""

from dataclasses import replace

from tokengt.data.manifest import Source
from tokengt.presets import small
from tokengt.training.config import TrainingConfig
from tokengt.training.spec import RunSpec
from tokengt.training.tasks import Task


def test_how_a_run_is_saved_and_launched_does_not_make_it_another() -> None:
    source = Source("molecules.csv", "0", 1)
    task = Task("regression", ("y",))
    spec = RunSpec(small(), TrainingConfig(epochs=3), task, "graph", 0, "random", "1", source, "2")
    for change in ({"checkpoint_seconds": 5.0}, {"cuda_graphs": False}):
        other = replace(spec, training=replace(spec.training, **change))
        assert other.fingerprint == spec.fingerprint
        assert not spec.differences(other)
    other = replace(spec, training=replace(spec.training, compile=True))
    assert other.fingerprint != spec.fingerprint
    assert other.differences(spec) == ["training.compile is True, not False"]
