import torch
from torch import Tensor

from tokengt.accelerate import compiled


def test_more_versions_than_pytorch_compiles_of_itself() -> None:
    """Past its limit PyTorch runs a function as plain Python, which no caller would notice."""
    from torch._dynamo.testing import CompileCounter

    def times(x: Tensor, factor: int) -> Tensor:
        return x * factor

    counter = CompileCounter()
    with torch._dynamo.config.patch(recompile_limit=3):  # The limit is put back afterwards.
        function = compiled(times, backend=counter, dynamic=False)
        for factor in range(6):
            assert torch.equal(function(torch.ones(2), factor), torch.full((2,), float(factor)))
    assert counter.frame_count == 6
    with torch._dynamo.config.patch(recompile_limit=1000):
        compiled(times, backend=counter)
        assert torch._dynamo.config.recompile_limit == 1000
