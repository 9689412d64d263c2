"""The loop ledger: turns what a training loop calls into a few numbers, which are recorded when they change."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leadline.monitor.loop_batches import DENSE_STEPS, BatchLedger, class_labels
from leadline.monitor.loop_gradients import OptimizerRecord, Tally, parameter_ids
from leadline.monitor.loop_listener import LoopListener
from leadline.monitor.loop_phases import Cycle, LossScale, Modes, ModuleFacts, Resume, Schedules
from leadline.monitor.step_losses import BackwardLosses
from leadline.tracer.live import is_in_backward
from leadline.tracer.restore import is_own_work
from leadline.tracer.stats import Known

# Heuristic: steps after which all parameters are looked at, then each time the number has doubled.
FIRST_AUDIT_STEP = 2
# Heuristic: passes per step that are summed on purpose: a critic sees real and made samples, one after the other.
MIN_SUMMED_PASSES = 3
# Heuristic: steps of the others after which an optimizer that gets gradients and has not stepped was forgotten.
MIN_IDLE_OPTIMIZER_STEPS = 64
# Heuristic: steps of other optimizers after which the given ones are not those that train.
MIN_UNSEEN_STEPS = 8
# Heuristic: steps between two looks at the numbers, after the first steps.
UPDATE_INTERVAL = 8
# Heuristic: steps between two looks at modules and groups that may have changed.
REFRESH_STEPS = 256
# Heuristic: steps that are followed without a rest; of one step less, which was followed from its beginning, every one
# must be wrong for half of them to be MIN_WRONG_STEPS.
FOLLOWED_STEPS = 8
# Heuristic: of the last STEP_WINDOW steps, those of another optimizer with a backward pass of its own that make a game.
MIN_ALTERNATIONS = 8
# Heuristic: new optimizers whose first steps are followed; more tell nothing new.
MAX_WOKEN_BUILDS = 64


class LedgerOwner(Protocol):
    """What a ledger tells the watch that it belongs to."""

    losses: BackwardLosses
    """The losses of its backward passes."""

    def record_losses(self) -> None:
        """Nothing may be left out from now on, because the ledger follows the next steps."""

    def see_other_steps(self) -> None:
        """Optimizers that are not watched step the watched parameters, and none of the watched does."""

    def affords_steps(self, count: int) -> bool:
        """Whether the budget has room for following so many steps."""

    def expect_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer of watched parameters was made, and may take the place of a watched one."""

    def lose_ledger(self, error: Exception) -> None:
        """The ledger is no longer kept, because of an error of its own."""


class LoopLedger(LoopListener):
    """Follows the training loop of some optimizers, and of others that hold the same parameters."""

    hides_from_modes = True
    resting_events = frozenset(
        (
            "before_backward",
            "after_backward",
            "zeroed",
            "before_call",
            "scaled",
            "scheduled",
            "iterated",
            "loaded",
            "read",
            "built",
        )
    )

    def __init__(self, optimizers: Sequence[Optimizer], owner: LedgerOwner | None = None) -> None:
        self.thread = threading.get_ident()
        self.changes: dict[str, float] = {}
        """Numbers that changed since `take`."""
        self.trouble: Exception | None = None
        """The error after which the ledger was no longer kept."""
        self.steps = 0
        """Steps of all optimizers that were followed."""
        self.rebuilt = 0
        """Optimizers that were made for watched parameters after the first one."""
        self._follow_until = DENSE_STEPS
        """The number of followed steps at which the ledger rests, if the budget has no room for more."""
        self._next_audit, self._next_refresh = FIRST_AUDIT_STEP, REFRESH_STEPS
        self._owner = None if owner is None else weakref.ref(owner)
        self._losses = BackwardLosses() if owner is None else owner.losses
        self._given = [weakref.ref(each) for each in optimizers]
        self._records: dict[int, OptimizerRecord] = {}
        """By id of the optimizer."""
        self._version = 0
        """Counts the changes of `_records`."""
        self._stepped: set[int] = set()
        """Ids of the first parameter of each optimizer that has stepped."""
        self._facts: weakref.WeakKeyDictionary[nn.Module, ModuleFacts] = weakref.WeakKeyDictionary()
        self._moving_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules with trainable parameters that no optimizer holds."""
        self._recorded: dict[str, int] = {}
        self._batches, self._scale, self._schedules = BatchLedger(), LossScale(), Schedules()
        self._modes, self._cycle, self._resume = Modes(), Cycle(), Resume()
        self._moving, self._fresh = Tally(), Tally()
        self._passes = 0
        """Backward passes."""
        self._has_root = False
        """Whether the current backward pass begins at a single loss."""
        for each in optimizers:
            self._record_of(each)

    def take(self) -> dict[str, float]:
        """Return the numbers that changed since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def pending(self) -> list[Tensor]:
        """Judgments that are still on a device."""
        return [each for record in self._records.values() for each in record.undecided]

    def receive(self, known: Known) -> None:
        """Take the pending judgments from what was transferred."""
        for record in self._records.values():
            record.decide(known)

    def set_number(self, name: str, number: float) -> None:
        """Record a number if it became zero or positive, or changed by a factor of about two."""
        bucket = int(number).bit_length()
        if self._recorded.get(name) != bucket:
            self._recorded[name] = bucket
            self.changes[name] = float(number)

    def _tell(self, message: str, *args: Any) -> None:
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            getattr(owner, message)(*args)

    def _has_stepped(self, reference: weakref.ref[Optimizer]) -> bool:
        optimizer = reference()
        record = None if optimizer is None else self._record_of(optimizer)
        return record is not None and record.steps > 0

    def give(self, optimizers: Sequence[Optimizer]) -> None:
        """Follow these optimizers from now on."""
        self._given = [weakref.ref(each) for each in optimizers]

    def built(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that is made for watched parameters, and its first steps: its state begins anew."""
        ids = parameter_ids(optimizer)
        if not any(each.is_own and not ids.isdisjoint(each.ids) for each in self._records.values()):
            return
        self._tell("expect_optimizer", optimizer)
        self.rebuilt += 1
        if self.rebuilt <= MAX_WOKEN_BUILDS:
            self.wake()

    # Resting. The first steps are all followed, because most mistakes are there from the beginning. Later ones are
    # followed in groups, as the budget allows. The losses of all steps are noted.

    def wake(self) -> None:
        """Follow the next steps."""
        self._follow_until = self.steps + FOLLOWED_STEPS
        if not self.is_resting:
            return
        self._tell("record_losses")
        for record in self._records.values():
            record.resume()
        self._batches.resume()
        self._modes.resume()
        self._cycle.resume()
        self.follow()

    def _rest_or_go_on(self) -> None:
        owner = None if self._owner is None else self._owner()
        if owner is None or owner.affords_steps(FOLLOWED_STEPS):
            self._follow_until = self.steps + FOLLOWED_STEPS
        else:
            self.resting_events = type(self).resting_events
            if not self._losses.is_needed:
                self.resting_events -= {"before_backward", "after_backward", "zeroed", "scaled"}
            elif len(self._records) == 1:  # the only optimizer of a program is reached by every pass
                self.resting_events -= {"after_backward", "zeroed"}
            if self._schedules.calls > self.steps // 2:  # a schedule by step is seen while the ledger follows
                self.resting_events -= {"scheduled"}
            self.rest()

    def _wakes_for_evaluation(self) -> bool:
        owner = None if self._owner is None else self._owner()
        if owner is not None and owner.affords_steps(FOLLOWED_STEPS):
            self.wake()
        return not self.is_resting

    def failed(self, error: Exception) -> None:
        self.trouble = error
        self._tell("lose_ledger", error)

    # What the loop calls, in the order of a step.

    def zeroed(self, owner: Optimizer | nn.Module, set_to_none: bool) -> None:
        self._cycle.forget_passes()
        records = list(self._records.values())
        if isinstance(owner, nn.Module):
            held = self._facts_of(owner).parameter_ids
            cleared = [each for each in records if not held.isdisjoint(each.ids)]
        else:
            cleared = [each for each in records if each.is_of(owner)]
        for record in cleared:
            record.zeroed()
        if any(each.is_own for each in cleared):
            self._losses.forget()

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_resting and not self._wakes_for_evaluation():
            return
        facts = self._facts_of(module)
        if not facts.parameter_ids:
            return
        is_trained = self._is_trained(facts)
        if not torch.is_grad_enabled():
            self._see_evaluation(module, facts, args, kwargs, is_trained=is_trained)
        elif is_trained:
            self._cycle.calls += 1
            self._modes.train(module, facts)
            for record in self._records.values():
                record.forward()
            if self._cycle.calls == 1:
                self._batches.train(self._cycle.turn, args, kwargs, look=self._modes.is_evaluating)
        elif facts.is_trainable:
            self._strangers.add(module)

    def _see_evaluation(
        self,
        module: nn.Module,
        facts: ModuleFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_trained: bool,
    ) -> None:
        if is_trained and self.steps:
            batch = self._batches.evaluate(args, kwargs, identify=facts.may_be_noisy and module.training)
            self._modes.evaluate(module, facts, batch)
        if is_trained:
            self._cycle.has_target |= module.training  # in eval mode it is evaluated
        elif module in self._moving_modules or facts.has_moved():
            self._cycle.has_target = True
            self._moving_modules.add(module)

    def before_backward(self, roots: tuple[Tensor, ...]) -> None:
        if self.is_resting:
            self._note_loss(roots)
            return
        for record in self._records.values():
            record.before_backward()
        is_game = self._cycle.alternations.count > 0
        self._modes.backward(self._batches.last_hash, has_stepped=self.steps > 0, is_game=is_game)
        if len(roots) != 1 or roots[0].numel() != 1:
            self._cycle.has_backward = True
            return
        loss, node = self._scale.begin_backward(roots[0])
        self._has_root = True
        self._losses.note(loss, roots[0])
        self._cycle.add_pass(node)
        labels = (
            class_labels(node, self._batches.size) if self._batches.size and self._batches.is_dense else None
        )
        if labels is not None:
            self._batches.labels.add(labels)

    def resting_pass(self, roots: Any) -> None:
        start = perf_counter()
        if self.thread != threading.get_ident():
            self.has_missed_passes = True
            return
        if is_own_work():
            return
        root = roots[0]
        is_plain = type(root) is Tensor and not torch._C._len_torch_function_stack()
        if len(roots) == 1 and is_plain and not self._scale.has_scaled and root.numel() == 1:
            self._losses.add_plain(root, start)
        elif isinstance(root, Tensor):
            with torch._C.DisableTorchFunction():
                self._note_loss(roots)

    def _note_loss(self, roots: tuple[Tensor, ...]) -> None:
        """Note only the loss of a backward pass, and what is needed to see whether it reaches watched parameters."""
        if len(roots) != 1 or roots[0].numel() != 1:
            return
        self._losses.note(self._scale.begin_backward(roots[0])[0], roots[0])
        if "after_backward" not in self.resting_events:
            self._losses.add()
            return
        self._has_root = True
        for record in self._records.values():
            record.begin_pass()

    def count_early_loss(self) -> None:
        """Count the loss of a backward pass before its end, if an optimizer steps in it."""
        if self._has_root and is_in_backward():
            self._losses.add()
            self._has_root = False

    def _add_loss(self) -> None:
        """Count the loss that was noted, if its backward pass has reached watched parameters."""
        if self._has_root and any(each.is_own and each.is_reached() for each in self._records.values()):
            self._losses.add()
        self._has_root = False

    def after_backward(self, roots: tuple[Tensor, ...]) -> None:
        if self.is_resting:
            self._add_loss()
            return
        self._passes += 1
        reached = [each for each in self._records.values() if each.after_backward()]
        if self._has_root and any(each.is_own for each in reached):
            self._losses.add()
        self._has_root = False
        self._cycle.calls = 0

    def scaled(self, loss: Any, scaled: Any) -> None:
        self._scale.add(loss, scaled)

    def unscaled(self, optimizer: Optimizer) -> None:
        self._scale.is_unscaled = True

    def clipped(self, parameters: tuple[Tensor, ...], max_norm: float, norm: Tensor | None) -> None:
        for record in self._records.values():
            if record.holds(parameters):
                record.clipped(max_norm, self._scale.pending())

    def before_step(self, optimizer: Optimizer) -> None:
        record = self._record_of(optimizer)
        if record is None:
            return
        first = id(record.probes[0]) if record.probes else 0
        if not record.is_own:
            return
        if self.has_missed_passes or self.thread != threading.get_ident():
            self._follow_this_thread()
        record.before_step(optimizer, stepped_before=first in self._stepped)
        if not record.steps:
            self.set_number("lost_state", self._resume.judge(optimizer, record))

    def _follow_this_thread(self) -> None:
        """Follow the thread that makes the steps. What another one did before this step is not known."""
        self.thread, self.has_missed_passes = threading.get_ident(), False
        for record in self._records.values():
            record.resume()

    def after_step(self, optimizer: Optimizer) -> None:
        record = self._record_of(optimizer)
        if record is None:
            return
        if not record.is_own:
            self._cycle.end(id(optimizer))
            return
        record.after_step(optimizer, self._passes)
        self._fresh.add(record.was_fresh)
        self.steps += 1
        self._batches.step += 1
        if record.probes and len(self._stepped) < REFRESH_STEPS:
            self._stepped.add(id(record.probes[0]))
        self._moving.add(self._cycle.has_target)
        self._modes.end_step()
        self._schedules.end_step(optimizer)
        passes = self._cycle.summed_passes
        self._cycle.end(id(optimizer))
        if self.steps <= DENSE_STEPS or self.steps % UPDATE_INTERVAL == 0:
            self._update(record, passes)
        if self.steps >= self._next_audit:
            self._next_audit = 2 * self.steps
            self._audit()
        if self.steps >= self._next_refresh:
            self._next_refresh = self.steps + REFRESH_STEPS
            self._refresh()
        is_unseen = self.steps >= MIN_UNSEEN_STEPS and self.steps.bit_count() == 1
        if is_unseen and not any(self._has_stepped(each) for each in self._given):
            self._tell("see_other_steps")
        if self.steps >= self._follow_until:
            self._rest_or_go_on()

    def scheduled(self, scheduler: LRScheduler) -> None:
        self._schedules.add(scheduler)

    def iterated(self, loader: Any) -> None:
        self._schedules.begin_epoch(loader)

    def loaded(self, owner: Any) -> None:
        self._resume.loaded(owner)

    def read(self, content: Any) -> None:
        self._resume.read(content)

    # The numbers.

    def _update(self, record: OptimizerRecord, passes: int) -> None:
        records = [each for each in self._records.values() if each.steps and each.is_own]
        for name in record.tallies:
            self.set_number(name, max(each.tallies[name].count for each in records))
        if (
            len(self._records) > 1
        ):  # the passes of one network reach another, which clears what it does not want
            self.set_number("dropped_passes", 0)
        numbers: dict[str, float] = {
            "zero_rate": min(each.zero_rate_steps for each in records),
            "low_rate": min(each.low_rate_steps for each in records),
            "summed_passes": passes if passes >= MIN_SUMMED_PASSES else 0,
            "moving_targets": self._moving.count,
            "fresh_states": self._fresh.count,
            "opponents": float(self._cycle.alternations.count >= MIN_ALTERNATIONS),
        }
        numbers |= self._schedules.numbers() | self._modes.numbers() | self._batches.numbers()
        if self._schedules.workers < 2 and "worker_copies" in numbers:
            numbers["worker_copies"] = 0
        for name, number in numbers.items():
            self.set_number(name, number)

    def _audit(self) -> None:
        """Compare the parameters that optimizers hold with those that get gradients."""
        optimized: set[int] = set().union(*(each.ids for each in self._records.values()))
        called = {module for module, facts in self._facts.items() if self._is_trained(facts)} | {
            *self._strangers
        }
        held: set[int] = set().union(*(self._facts_of(module).parameter_ids for module in called))
        orphans = {
            id(each)
            for module in called
            for each in module.parameters()
            if each.requires_grad and each.grad is not None and id(each) not in optimized
        }
        foreign = sum(
            each.requires_grad and each.grad is None and id(each) not in held
            for record in self._records.values()
            if record.steps and record.is_own
            for each in record.parameters()
        )
        self.set_number("orphan_parameters", len(orphans) if foreign else 0)
        self.set_number("foreign_parameters", foreign if orphans else 0)
        self._strangers.clear()
        if self.steps >= MIN_IDLE_OPTIMIZER_STEPS:
            self.set_number("idle_optimizers", sum(self._idle_optimizers()))

    def _idle_optimizers(self) -> Iterator[bool]:
        """Yield for each given optimizer whether it never stepped although its parameters get gradients."""
        for reference in self._given:
            optimizer = reference()
            record = None if optimizer is None else self._record_of(optimizer)
            if record is not None:
                yield not record.steps and record.has_gradients

    def _refresh(self) -> None:
        self._facts.clear()
        self._forget_dead()
        for each in self._records.values():
            each.choose_probes()

    def _forget_dead(self) -> None:
        self._records = {key: each for key, each in self._records.items() if each.optimizer() is not None}
        self._version += 1

    def _is_trained(self, facts: ModuleFacts) -> bool:
        if facts.version != self._version:
            facts.version = self._version
            records = [each for each in self._records.values() if each.is_own]
            facts.is_trained = any(not facts.parameter_ids.isdisjoint(each.ids) for each in records)
        return facts.is_trained

    def _facts_of(self, module: nn.Module) -> ModuleFacts:
        facts = self._facts.get(module)
        if facts is None:
            facts = self._facts[module] = ModuleFacts(module)
        return facts

    def _record_of(self, optimizer: Optimizer) -> OptimizerRecord | None:
        """Return the record of an optimizer; None for a wrapper, whose inner optimizer steps too."""
        record = self._records.get(id(optimizer))
        if record is not None and record.optimizer() is optimizer:
            return record
        if not isinstance(getattr(optimizer, "state", None), dict):
            return None
        self._forget_dead()
        record = OptimizerRecord(optimizer)
        own = [each for each in self._records.values() if each.is_own]
        is_given = any(reference() is optimizer for reference in self._given)
        record.is_own = is_given or any(not each.ids.isdisjoint(record.ids) for each in own)
        self._records[id(optimizer)] = record
        return record
