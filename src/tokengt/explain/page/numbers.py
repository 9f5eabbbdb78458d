"""Arrays as JSON can say them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_numbers(values: NDArray[np.float64]) -> Any:
    """Nested lists with null for what is no number, which JSON cannot write."""
    numbers = values.astype(object)
    numbers[~np.isfinite(values)] = None
    return numbers.tolist()
