"""Third-party monitors for benchmarks/watch.py, each configured to record as much as it can at every step.

The project does not need them. They are measured if installed: `pip install torchmortem delve`, and for Cockpit
`pip install cockpit-for-pytorch "setuptools<81"`, because it reads its version with pkg_resources.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline import Case


class Torchmortem:
    """`Autopsy` with every collector at every step: activations, gradients, weights, loss; rank and curvature too."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from torchmortem import Autopsy, SamplingConfig

        every_step = SamplingConfig(default_interval=1, expensive_interval=1)
        self._autopsy = Autopsy(model, optimizer=optimizer, sampling=every_step)
        self._autopsy.attach()

    def loss(self, loss: Tensor) -> None:
        self._loss = loss.item()

    def end(self) -> None:
        self._autopsy.step(loss=self._loss)

    def close(self) -> None:
        self._autopsy.detach()  # and analyze what was collected, which is no part of a step


class Delve:
    """`SaturationTracker` with the saturation of each layer, read at every step and stored as CSV."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from delve import SaturationTracker

        logging.getLogger("delve").setLevel(logging.WARNING)
        self._tracker = SaturationTracker(
            str(folder / "delve"), save_to="csv", modules=model, stats=["lsat"], device="cpu"
        )

    def loss(self, loss: Tensor) -> None:
        self._tracker.add_scalar("loss", loss.item())

    def end(self) -> None:
        self._tracker.add_saturations()

    def close(self) -> None:
        self._tracker.close()


class Cockpit:
    """Its cheapest configuration, "economy", at every step. BackPACK must extend the model and compute the loss."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from backpack import extend
        from cockpit import Cockpit as Instruments
        from cockpit.utils.configuration import configuration

        warnings.filterwarnings("ignore")  # of torch, about its full backward hooks: one a layer and step
        self._model, self._optimizer, self._step = extend(model), optimizer, 0
        self._loss = extend(nn.CrossEntropyLoss())
        self._each = nn.CrossEntropyLoss(reduction="none")
        self._cockpit = Instruments(model.parameters(), quantities=configuration("economy"))

    def step(self, case: Case) -> None:
        """Do a whole training step, because the backward pass runs inside the monitor."""
        outputs, targets = self._model(case.inputs), case.targets.flatten()
        outputs = outputs.flatten(0, -2)  # of tokens: as many samples
        loss = self._loss(outputs, targets)
        with torch.no_grad():
            each = self._each(outputs, targets)
        about = {
            "batch_size": len(each),
            "individual_losses": each,
            "loss": loss,
            "optimizer": self._optimizer,
        }
        with self._cockpit(self._step, info=about):
            loss.backward(create_graph=self._cockpit.create_graph(self._step))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1

    def loss(self, loss: Tensor) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


PEERS: dict[str, tuple[str, Any]] = {
    "torchmortem": ("torchmortem", Torchmortem),
    "delve, saturation": ("delve", Delve),
    "Cockpit, economy": ("cockpit", Cockpit),
}
"""By name: the package each needs, and how it is set up."""
