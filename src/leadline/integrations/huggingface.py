"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[LeadlineCallback(store="run.leadline")])`.

At `on_step_end` gradients are gone, so the watch reads them at the optimiser's own step; this callback starts and ends
it, and tells it the loss, which the Trainer shows to no callback: it is read off the model's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from leadline.integrations._session import Session
from leadline.integrations.accelerate import bare_optimizer
from leadline.integrations.sinks import Sink
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch


class LeadlineCallback(TrainerCallback):
    """Watches `train`. The watch is in `.watch`, during and after it.

    `store`, `budget`, `every` and `on_alert` are those of `leadline.watch`; with `on_alert="stop"` the trainer ends
    its run in order. `sinks` are trackers (`leadline.integrations.sinks`), which get numbers every `push_every` steps.
    """

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        budget: float = 0.01,
        every: int | None = None,
        on_alert: OnAlert = "log",
        sinks: Sequence[Sink] = (),
        push_every: int = 10,
    ) -> None:
        self._session = Session(
            store=store, budget=budget, every=every, on_alert=on_alert, sinks=sinks, push_every=push_every
        )
        self._handle: RemovableHandle | None = None

    @property
    def watch(self) -> Watch | None:
        """None before training has begun."""
        return self._session.watch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        begun = self._session.begin(given["model"], bare_optimizer(given["optimizer"]))
        self._handle = _tell_losses(given["model"], begun, parts=args.gradient_accumulation_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if self._session.stepped():
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._session.close()


def _tell_losses(model: nn.Module, watch: Watch, *, parts: int) -> RemovableHandle:
    """A forward hook that reads the loss off the model's output and returns nothing.

    Where the Trainer passes `num_items_in_batch`, each micro-batch's loss is its share of the whole step's, and the
    step's loss is their sum; the watch takes the mean of what it is told, so shares are multiplied by their number.
    """

    def tell(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if module.training and isinstance(loss, Tensor) and loss.requires_grad and not watch.closed:
            shared = kwargs.get("num_items_in_batch") is not None
            watch.loss(loss.detach().mean() * (parts if shared else 1))

    return model.register_forward_hook(tell, with_kwargs=True)
