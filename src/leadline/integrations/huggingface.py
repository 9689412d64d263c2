"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[LeadlineCallback(store="run.leadline")])`.

Gradients are gone at `on_step_end`, so the watch reads them when the optimizer steps. This callback starts and closes
the watch and gives it the loss, which it reads from the model's output because the Trainer passes it to no callback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from leadline.integrations._session import WatchSession
from leadline.integrations.accelerate import unwrap_optimizer
from leadline.integrations.sinks import Sink
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch


class LeadlineCallback(TrainerCallback):
    """Watches `train`. The watch is available as `.watch` during and after training.

    `store`, `budget`, `every` and `on_alert` are the arguments of `leadline.watch`; with `on_alert="stop"` the trainer
    stops normally. `sinks` are trackers (`leadline.integrations.sinks`) that receive numbers every `push_every` steps.
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
        self._session = WatchSession(
            store=store, budget=budget, every=every, on_alert=on_alert, sinks=sinks, push_every=push_every
        )
        self._handle: RemovableHandle | None = None

    @property
    def watch(self) -> Watch | None:
        """The watch; None before training starts."""
        return self._session.watch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        watch = self._session.start(kwargs["model"], unwrap_optimizer(kwargs["optimizer"]))
        self._handle = _hook_losses(kwargs["model"], watch, parts=args.gradient_accumulation_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._session.push():
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._session.close()


def _hook_losses(model: nn.Module, watch: Watch, *, parts: int) -> RemovableHandle:
    """Register a forward hook that passes the loss in the model's output to the watch.

    When the Trainer passes `num_items_in_batch`, the loss of a micro-batch is its share of the step's loss, and the
    step's loss is the sum of the shares. The watch takes the mean of the losses it receives, so each share is
    multiplied by the number of micro-batches.
    """

    def pass_loss(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if module.training and isinstance(loss, Tensor) and loss.requires_grad and not watch.closed:
            is_share = kwargs.get("num_items_in_batch") is not None
            watch.loss(loss.detach().mean() * (parts if is_share else 1))

    return model.register_forward_hook(pass_loss, with_kwargs=True)
