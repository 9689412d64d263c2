"""Limits that several readings and checks share, and the defaults of public functions that need no reading loaded."""

from __future__ import annotations

from leadline.ops.optimizers import Family

# Calibrated by benchmarks/gradient_decay.py: natural logarithm of the change of the squared signal over the depth.
# Beyond the first, no network of the benchmark learned with SGD; beyond the second, none learned with Adam either.
MAX_EFOLDS_SGD = 7.0
MAX_EFOLDS_ADAM = 14.0

# Calibrated by benchmarks/update_limits.py: learning rate over the safe rate at which about half of all networks fail.
HALF_FAIL_RATE_RATIO: dict[Family, float] = {"sgd": 4.0, "adam": 16.0}

# Heuristic: with one or two repeated layers there is no stack whose depth could be the problem.
MIN_STACK_LAYERS = 3

# Heuristic: depths of a forecast; three octaves show a power law and are cheap to measure.
DEFAULT_DEPTHS = (4, 8, 16, 32)

# Heuristic: a relative change of the outputs that still counts as "the same function" where the eps of a norm matters.
MAX_OUTPUT_CHANGE = 1e-3
