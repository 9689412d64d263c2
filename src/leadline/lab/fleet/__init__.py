"""Train thousands of small MLPs at once, with stacked parameters and one batched product per layer."""

from leadline.lab.fleet.plan import Net, Task, build_alone, train_alone
from leadline.lab.fleet.training import FleetResult, train_fleet

__all__ = ["FleetResult", "Net", "Task", "build_alone", "train_alone", "train_fleet"]
