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

from leadline.integrations.accelerate import bare_optimizer
from leadline.integrations.sinks import Feed, Sink
from leadline.watching import Watch, watch
from leadline.watching.actions import OnAlert


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
        self.watch: Watch | None = None
        self._store, self._budget, self._every, self._on_alert = store, budget, every, on_alert
        self._sinks, self._push_every = sinks, push_every
        self._feed: Feed | None = None
        self._handle: RemovableHandle | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model, optimizer = given["model"], given["optimizer"]
        self.watch = watch(
            model,
            bare_optimizer(optimizer),
            store=self._store,
            budget=self._budget,
            every=self._every,
            on_alert=self._on_alert,
        )
        self._feed = Feed(self.watch, self._sinks, every=self._push_every)
        self._handle = _tell_losses(model, self.watch, parts=args.gradient_accumulation_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if self._feed is not None:
            self._feed.push()
        if self.watch is not None and self.watch.stopped:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if self._handle is not None:
            self._handle.remove()
        if self.watch is not None:
            self.watch.close()
        if self._feed is not None:
            self._feed.close()
            self._feed = None


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
