"""One run: what it hands to the loop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.stores import molecule_store
from tests.workflow.small import TINY
from tokengt.data.manifest import Recipe
from tokengt.data.splitting import SplitRequest
from tokengt.training import run
from tokengt.training.notes import data_notes
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import Member, resolve
from tokengt.training.spec import read_run


class Stopped(Exception):
    """Before the first step."""


def asked(seed: int, **more: Any) -> TrainRequest:
    return TrainRequest(
        preset="small", settings=TINY, split=SplitRequest("random", seed), seed=seed, quiet=True, **more
    )


def members(seed: int, folder: Path, **more: Any) -> list[Member]:
    return resolve(asked(seed, **more), molecule_store(), None, folder, lambda sentence: None)


def first_weights(member: Member) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in member.build().parameters()]).tolist()


def test_the_seed_decides_over_split_weights_and_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another seed that shuffled and dropped as the first one did would look like a second opinion."""
    given: list[dict[str, Any]] = []

    def noted(*_: Any, **options: Any) -> None:
        given.append(options)
        raise Stopped

    monkeypatch.setattr(run, "Trainer", noted)
    for seed in (3, 4):
        fabric = make_fabric(DeviceConfig("cpu"), "float32")
        folder = tmp_path / str(seed)
        with pytest.raises(Stopped):
            run.train_run(fabric, molecule_store(), asked(seed), None, folder, lambda sentence: None)
        assert given[-1]["seed"] == seed
        # A checkpoint of another seed is not gone on with.
        assert given[-1]["fingerprint"] == read_run(folder).fingerprint
        assert given[-1]["folder"] == folder
    assert given[0]["fingerprint"] != given[1]["fingerprint"]
    (three,), (four,), (again,) = members(3, tmp_path), members(4, tmp_path), members(3, tmp_path)
    assert three.split.test.tolist() == again.split.test.tolist() != four.split.test.tolist()
    assert first_weights(three) == first_weights(again) != first_weights(four)


def test_models_of_an_ensemble_have_seeds_and_weights_of_their_own_and_one_split(tmp_path: Path) -> None:
    first, second, third = members(3, tmp_path, ensemble=3)
    assert [member.spec.seed for member in (first, second, third)] == [3, 1003, 2003]
    assert [member.name for member in (first, second, third)] == ["model-0", "model-1", "model-2"]
    assert first_weights(first) != first_weights(second) != first_weights(third)
    assert first.split.test.tolist() == second.split.test.tolist() == third.split.test.tolist()


def test_building_a_model_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    (member,) = members(3, tmp_path)
    torch.manual_seed(8)
    member.build()
    drawn = torch.rand(2)
    torch.manual_seed(8)
    assert torch.equal(drawn, torch.rand(2))


@pytest.mark.parametrize("told", [False, True])
def test_numbers_that_look_like_classes_are_said_unless_somebody_chose_them(tmp_path: Path, told: bool) -> None:
    store = molecule_store(40)
    store = replace(store, targets=torch.arange(40.0, dtype=torch.float64)[:, None] % 3)
    request = asked(0, recipe=Recipe(task="regression" if told else None))
    said: list[str] = []
    (member,) = resolve(request, store, None, tmp_path, said.append)
    data_notes(store, member, request.recipe.task is None, said.append)
    assert any("a few whole numbers" in sentence for sentence in said) == (not told)
