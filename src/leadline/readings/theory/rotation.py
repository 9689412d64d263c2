r"""Tables of sines and cosines that rotate features by their position: how their second moment differs by position.

The angles are $p\,\theta_k$ for the positions $p = 0, 1, \ldots$ and frequencies $\theta_k = \theta_0 r^k$. All sines
are zero at the first position and small at the next ones, where gradients are largest under a causal mask.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from leadline.readings.theory.position_profile import MAX_PROFILE_LENGTH, PositionProfile, normalized_profile
from leadline.records import Value

ROTATIONS = {"sin": torch.sin, "cos": torch.cos}

# Derived: the share of one position among n is measured as a float.
MAX_ROUNDING = 1e-4

# Heuristic: frequencies that reproduce the measured second moment of the table less well are no geometric series.
MAX_TABLE_ERROR = 0.1

# Derived: each step halves the error of the ratio of two frequencies, which starts at 1; 2^-40 is below float32.
BISECTIONS = 40


def rotation_profile(name: str, angles: Value, table: Value) -> PositionProfile | None:
    """The profile by position of a table of sines or cosines, given its angles; None if they are no rotation."""
    long = [axis for axis, size in enumerate(table.shape) if size > 1]
    if len(long) != 2 or angles.forward is None or table.forward is None or table.forward.ms <= 0:
        return None
    n, features = (table.shape[axis] for axis in long)
    starts_at_zero = abs(angles.forward.zero_share * n - 1) < MAX_ROUNDING
    if not starts_at_zero or n > MAX_PROFILE_LENGTH or not 0 < angles.forward.mean < angles.forward.abs_max:
        return None
    # rotations of halves repeat each frequency
    counts = {features, max(features // 2, 1)}
    largest, mean = angles.forward.abs_max, angles.forward.mean
    tables = [ROTATIONS[name](_angles(largest, mean, n, count)).square().mean(1) for count in counts]
    errors = [abs(float(each.mean()) / table.forward.ms - 1) for each in tables]
    if min(errors) > MAX_TABLE_ERROR:
        return None
    return normalized_profile(long[0], tables[errors.index(min(errors))].tolist())[1]


@lru_cache(maxsize=64)
def _angles(largest: float, mean: float, n: int, count: int) -> Tensor:
    """Positions times frequencies: a geometric series with the given largest angle and mean angle."""
    target = 2 * mean / largest
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        series = (1 - middle**count) / (count * (1 - middle))
        low, high = (middle, high) if series < target else (low, middle)
    positions = torch.arange(n, dtype=torch.float64, device="cpu")
    powers = torch.arange(count, dtype=torch.float64, device="cpu")
    return torch.outer(positions, largest / (n - 1) * high**powers)
