"""Planning a model: shapes alone, quickly."""

import subprocess
import sys

import torch
from torch import nn

from tokengt.models.planned import planned
from tokengt.presets import PRESETS


def test_a_planned_model_has_the_shapes_of_the_built_one_and_nothing_is_drawn() -> None:
    state = torch.random.get_rng_state()
    for name in ("small", "gin"):
        config = PRESETS[name]()
        with planned():
            shapes = {key: value.shape for key, value in config.build().state_dict().items()}
        assert torch.equal(torch.random.get_rng_state(), state)
        with torch.random.fork_rng():
            assert shapes == {key: value.shape for key, value in config.build().state_dict().items()}


def test_pytorchs_compiler_is_not_imported_for_it() -> None:
    """In a process of its own, since any other test may have imported it."""
    script = (
        "import sys, torch\n"
        "from torch import nn\n"
        "from tokengt.models.planned import planned\n"
        "from tokengt.presets import PRESETS\n"
        "with planned():\n"
        "    PRESETS['small']().build()\n"
        "    for fill in (nn.init.xavier_uniform_, nn.init.orthogonal_, nn.init.trunc_normal_):\n"
        "        assert fill(torch.empty(3, 4)).is_meta\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_outside_of_it_weights_are_drawn_as_ever() -> None:
    with planned():
        pass
    weight = torch.zeros(2, 2)
    nn.init.normal_(weight)
    assert (weight != 0).all()
