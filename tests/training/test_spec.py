"""What makes two runs the same."""

from dataclasses import replace

from tokengt.config import from_dict, to_dict
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


def test_a_run_of_before_metric_and_loss_could_be_chosen_is_the_same_run() -> None:
    """The fingerprint was written down by the version before; a run that it began can go on."""
    task = Task("regression", ("y",))
    spec = RunSpec(
        small(), TrainingConfig(epochs=3), task, "graph", 0, "random", "1", Source("molecules.csv", "0", 1), "2"
    )
    assert spec.fingerprint == "38792bac706855d52611532ddb7205e5010f695939c618813af1db67c3aa102b"
    content = to_dict(spec)
    for name in ("metric", "loss"):
        del content["task"][name], content["training"][name]
    assert from_dict(RunSpec, content) == spec
    other = replace(spec, training=replace(spec.training, metric="mae"), task=replace(task, metric="mae"))
    assert other.differences(spec) == ["training.metric is mae, not None"]
