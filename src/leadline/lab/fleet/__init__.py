"""Thousands of small MLPs trained at once: parameters stacked, one batched product a layer for all of them.

plan       what a network of a fleet is, and how its weights are drawn
slopes     activations with their derivatives, in the form the hand-written backward pass needs
stack      parameters of networks of different depth in one tensor a layer; one step of SGD on all of them
training   a fleet cut into chunks that stay in the cache, each trained through all steps
loop       the same, one `nn.Sequential` after the other: what the fleet is compared with
"""

from leadline.lab.fleet.plan import Net, Task, build_alone, train_alone
from leadline.lab.fleet.training import FleetResult, train_fleet

__all__ = ["FleetResult", "Net", "Task", "build_alone", "train_alone", "train_fleet"]
