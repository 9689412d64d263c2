"""The steps of training: each lasts from one optimizer step to the next, and is measured, charged and recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.monitor import parameters as per_parameter
from leadline.monitor.block_exits import BlockExits
from leadline.monitor.budget import PLAN_INTERVAL, Level, MeasurementSchedule
from leadline.monitor.clipping import Intervention, RawGradients
from leadline.monitor.journal import Journal
from leadline.monitor.layout import AXIS, move_layout
from leadline.monitor.loop_gradients import parameter_ids
from leadline.monitor.loop_ledger import FOLLOWED_STEPS, LoopLedger
from leadline.monitor.mixed_precision import has_overflow, pending_scale
from leadline.monitor.parameters import (
    ParameterMeasurements,
    ParameterTable,
    build_parameter_table,
    max_learning_rate,
)
from leadline.monitor.sampler import Sampler, Samples, is_compiled
from leadline.monitor.step_problems import StepProblems
from leadline.monitor.step_record import Call, LightSteps, StepRecord, mean_loss, to_number, wrap_closure
from leadline.records import Trace
from leadline.records.run import Alert

# Derived: light steps that are charged together; as many as lie between two plans.
LIGHT_STEPS_PER_CHARGE = PLAN_INTERVAL


class TrainingSteps:
    """Follows the optimizers' steps. A step ends when all of them have stepped, or one of them steps again."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        journal: Journal,
        schedule: MeasurementSchedule,
        sampler: Sampler | None,
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.journal, self.schedule, self.sampler = journal, schedule, sampler
        self.samples = Samples(journal, schedule)
        self.exits = BlockExits()
        schedule.unavailable.add(Level.BLOCKS)
        self.problems = StepProblems(model, journal)
        self.scaler, self.stall = self.problems.scaler, self.problems.stall
        self.ledger = LoopLedger(optimizers, self)
        self.intervention: Intervention | None = None
        self.new_alerts: list[Alert] = []
        """Alerts that were not yet passed to the user."""
        self._parameters = self._build_parameter_table()
        self._light_steps = LightSteps()
        self._unfinished: StepRecord | None = None
        """The previous step, if a device still computed its measurements when it ended."""
        self._has_replicas = journal.ranks.world_size > 1
        self.needs_losses = True
        """False if the user passes losses; those of backward passes are then not recorded."""
        self._root_loss: Tensor | float | None = None
        """The loss of the current backward pass."""
        self._followed = 0
        """Steps of the ledger that are charged."""
        self._next_charge = schedule.first_step
        """The step at which light steps are charged to the budget."""
        self.is_light = False
        """True if only the loss of the current step is recorded, with one optimizer and no scaler."""
        self.add_hooks: Callable[[Sequence[Optimizer]], None] = lambda _: (
            None
        )  # the watch follows their steps
        self.current = self._open(schedule.first_step, None)

    def expect_optimizer(self, optimizer: Optimizer) -> None:
        self.add_hooks([optimizer])
        self.is_light = False

    def _adopt(self, optimizer: Optimizer) -> None:
        """Replace the optimizers of the same parameters by one that steps in their place."""
        ids = parameter_ids(optimizer)
        self.optimizers = [each for each in self.optimizers if ids.isdisjoint(parameter_ids(each))]
        self.optimizers.append(optimizer)
        self.ledger.give(self.optimizers)
        self._parameters = self.current.parameters.table = self._build_parameter_table()

    def begin(self, optimizer: Optimizer, call: Call) -> Call | None:
        """Called before an optimizer steps; returns the arguments to call it with instead, if any."""
        start = perf_counter()
        self._finish_previous()
        if id(optimizer) in self.current.stepped:
            self._end()
        if not any(each is optimizer for each in self.optimizers):
            self._adopt(optimizer)
        self.ledger.count_early_loss()
        self.current.stepped.add(id(optimizer))
        self.scaler.find_scaler()
        changed = wrap_closure(call, partial(self._after_closure, optimizer))
        if changed is None:
            start = self._measure(optimizer, start)
            if self.intervention is not None:
                self._intervene(self.intervention, optimizer)
        self.current.charge(Level.ROW, start)
        return changed

    def end(self, optimizer: Optimizer) -> None:
        """Called after an optimizer has stepped, unless the step is light."""
        start = perf_counter()
        if self.intervention is not None:
            self.intervention.after(optimizer)
        if self.current.level >= Level.UPDATES:
            self.current.parameters.measure_updates(optimizer)
            self.current.charge(Level.UPDATES, start)
        if len(self.current.stepped) == len(self.optimizers):
            self._end()

    def loss(self, loss: Tensor | float) -> None:
        start = perf_counter()
        self.needs_losses = False
        value, losses = to_number(loss), self.current.losses
        losses.append(value)
        if type(value) is float and not math.isfinite(value):
            self.problems.locate_non_finite(self.current.step, loss)
        if self.stall.add_loss(loss):
            self.new_alerts += self.problems.report_stall(self.current.step)
            del losses[:-1]
        self.current.loss_seconds += perf_counter() - start

    def note_root_loss(self, loss: Tensor, root: Tensor) -> None:
        """Note the loss of a backward pass that begins; of a closure that is evaluated several times, the first."""
        self._root_loss = None
        if not self.needs_losses or (self.current.stepped and self.current.root_losses):
            return
        start = perf_counter()
        self._root_loss = value = to_number(loss)
        if type(value) is float and not math.isfinite(value):
            self.problems.locate_non_finite(self.current.step, root)
        self.current.loss_seconds += perf_counter() - start

    def add_root_loss(self) -> None:
        """Count the loss that was noted, because its backward pass has reached watched parameters."""
        if self._root_loss is not None:
            self.current.root_losses.append(self._root_loss)

    def add_resting_loss(self, loss: Tensor) -> None:
        """Note and count the loss of a backward pass that begins, as the two methods above; once per step."""
        record = self.current
        if not self.needs_losses or (record.stepped and record.root_losses):
            return
        value = loss.item() if loss.is_cpu else to_number(loss)
        if type(value) is float and not math.isfinite(value):
            self.problems.locate_non_finite(record.step, loss)
        record.root_losses.append(value)

    def forget_root_losses(self) -> None:
        """Forget losses whose gradients were cleared; not those of a closure, which clears them itself."""
        if not self.current.stepped:
            self.current.root_losses.clear()

    def affords_steps(self, count: int) -> bool:
        """Charge the ledger, and return whether the budget has room for following so many steps."""
        self._charge_ledger()
        return self.schedule.affords_ledger(self.current.step, count)

    def _charge_ledger(self) -> float:
        """Charge what the ledger has taken since the last time, and return it. Wake it if that is affordable."""
        ledger, followed = self.ledger, self._followed
        seconds, ledger.seconds, self._followed = ledger.seconds, 0.0, ledger.steps
        self.schedule.add_ledger_cost(seconds, ledger.steps - followed)
        if ledger.is_resting and self.schedule.affords_ledger(self.current.step, FOLLOWED_STEPS):
            ledger.wake()
        return seconds

    def _compare_replicas(self, step: int) -> None:
        drift = self.journal.ranks.drift(step, self.model)
        if drift is not None:
            self.ledger.set_number("replica_drift", drift)

    def lose_ledger(self, error: Exception) -> None:
        message = f"the loop is no longer followed after an internal error: {type(error).__name__}: {error}"
        self.journal.add_event(self.current.step, "warning", message)

    def add_past_step(self, loss: float) -> None:
        """Record the loss of the step before the first one that is followed."""
        self._light_steps.add(self.current.step, perf_counter(), [loss], max_learning_rate(self.optimizers))
        self._light_steps.mark_charged()
        self.schedule.skip_step()
        self.current.step += 1

    def unclipped(self, norm: Tensor | float) -> None:
        self.current.unclipped.append(to_number(norm))

    def flush(self, *, ready: bool = False) -> None:
        """Add the light steps to the history and the run file."""
        if self._light_steps:
            self.journal.add_light_steps(self._light_steps.take(ready=ready))

    def disarm(self) -> None:
        """Remove every hook from the model and its parameters."""
        if self.sampler is not None:
            self.sampler.disarm()
        self._disarm_others()

    def _disarm_others(self) -> None:
        """Remove the hooks that are not the sampler's."""
        if self.current.raw_gradients is not None:
            self.current.raw_gradients.disarm()
        self.exits.disarm()

    def close(self) -> None:
        """Finish the last step and make the waiting reports."""
        self.disarm()
        self._finish_previous()
        if self.current.stepped:
            self._finish(self.current)
            self.current.stepped.clear()
        self.flush()
        self.journal.record_overhead(self.schedule.overhead)
        self.new_alerts += self.problems.report_end(self.current.step)
        self.new_alerts += self.journal.update_alerts(last=True)
        self.new_alerts += self.samples.make_all_reports()

    def _finish_previous(self) -> None:
        if self._unfinished is not None:
            self._finish(self._unfinished)
            self._unfinished = None

    def _open(self, step: int, start: float | None) -> StepRecord:
        """Return the record of the next step, and set the hooks it needs."""
        record = StepRecord(step, self.schedule.level(step), ParameterMeasurements(self._parameters), start)
        if record.level >= Level.TRACE and self.sampler is not None:
            self.sampler.arm()
            if self.journal.ranks.world_size == 1:  # otherwise the hooks run before gradients are averaged
                by_optimizer = self._parameters.by_optimizer.values()
                record.raw_gradients = RawGradients(
                    each for parameters in by_optimizer for each in parameters
                )
                record.raw_gradients.arm()
        elif self.sampler is not None:
            self.sampler.disarm()
        if record.level is Level.BLOCKS:
            self.exits.arm()
        else:
            self.exits.disarm()
        return record

    def end_light_step(self) -> None:
        """Record the loss. Everything else is done for several light steps together."""
        now, record = perf_counter(), self.current
        groups = self.optimizers[0].param_groups
        rate = groups[0].get("lr")
        if len(groups) > 1 or type(rate) is not float:
            rate = max_learning_rate(self.optimizers)
        if not record.losses and len(record.root_losses) == 1:  # inlined from `use_root_losses`
            record.losses, record.root_losses = record.root_losses, []
        elif record.root_losses:
            record.use_root_losses()
        losses = record.losses
        self._light_steps.rows.append((record.step, now, losses, rate, record.loss_seconds))
        if self.ledger.changes:
            self._check_loop(record.step)
        if losses:
            self._check_loss(record)
            if self.stall.losses:
                self.stall.add_step()
            record.losses = []
        record.step += 1
        if self._has_replicas:
            self._compare_replicas(record.step)
        record.loss_seconds = perf_counter() - now  # charged to the next step, which has just begun
        if record.step >= self._next_charge or now >= self.journal.next_flush:
            self._charge_light_steps(record)

    def _check_loop(self, step: int) -> None:
        """Record what changed in the loop with a light step, and look at it unless all is well."""
        numbers = self.ledger.take()
        self._light_steps.add_loop(step, numbers)
        if any(numbers.values()):
            self.flush()
            self.new_alerts += self.journal.update_alerts()

    def see_other_steps(self) -> None:
        """Look at a loop in which no watched optimizer steps, so that nothing else of it is recorded."""
        self.new_alerts += self.journal.judge_loop(self.current.step, self.ledger.take())

    def _charge_light_steps(self, record: StepRecord) -> None:
        """Charge light steps to the budget, flush them if it is time, and decide what the next step needs.

        Costs are in processor time, because a wait for the interpreter while another process has the machine would
        happen anyway.
        """
        start, last = thread_time(), record.step - 1
        training, watch_seconds = self._light_steps.charge(record.start)
        ledger_seconds = self._charge_ledger() / max(1, len(training))
        for seconds in training:
            self.schedule.add_step(max(0.0, seconds - ledger_seconds))
        if perf_counter() >= self.journal.next_flush or self._light_steps.is_full:
            self.flush(ready=True)
            self.schedule.add_base_cost(self.journal.take_writer_seconds())
        if self.schedule.needs_plan(last, Level.LOSS):
            self._plan(last)
        self.schedule.add_base_cost(watch_seconds + thread_time() - start)
        record.start, record.loss_seconds = perf_counter(), 0.0
        if self.schedule.level(record.step) is Level.LOSS:
            self._next_charge = min(record.step + LIGHT_STEPS_PER_CHARGE, *self.schedule.due.values())
        else:
            self._open_next(record.step, record.start)

    def _check_loss(self, record: StepRecord) -> None:
        """Report a non-finite loss immediately if reading it needs no wait."""
        last = record.losses[-1]
        is_bad = type(last) is float and not math.isfinite(last)
        if self.problems.is_non_finite or is_bad:
            if not self.problems.is_non_finite:
                self.flush()  # so that the timeline has this step
            self._check_finite(record.step, {"loss": mean_loss(record.losses) or 0.0})

    def _after_closure(self, optimizer: Optimizer, result: Any) -> None:
        """Measure the gradients that a closure has just computed, as before a step without a closure."""
        start = perf_counter()
        if isinstance(result, Tensor | float) and not self.current.losses:
            self.current.losses.append(to_number(result))
        self.current.charge(Level.ROW, self._measure(optimizer, start))

    def _measure(self, optimizer: Optimizer, start: float) -> float:
        """Measure what is visible when gradients exist and the step is not yet made; return the current time."""
        record = self.current
        if record.level >= Level.GRADIENTS:
            start = record.charge(Level.ROW, start)
            self._update_parameter_table(optimizer)
            record.parameters.measure_gradients(optimizer, pending_scale(optimizer))
            start = record.charge(Level.GRADIENTS, start)
        if record.level >= Level.UPDATES:
            record.parameters.copy_weights(optimizer)
            start = record.charge(Level.UPDATES, start)
        if len(record.stepped) == len(self.optimizers):
            if record.level >= Level.TRACE:
                start = self._take_sample(optimizer, start)
            elif self.exits.is_measuring:
                scale, _ = self.scaler.read(peek=True)
                record.block_moments = self.exits.take(scale or 1.0)
                start = record.charge(Level.BLOCKS, start - self.exits.seconds)
        if has_overflow(optimizer):
            self.journal.add_event(
                record.step,
                "skipped step",
                "the fused optimizer skips this step because gradients overflowed",
            )
        return start

    def _intervene(self, intervention: Intervention, optimizer: Optimizer) -> None:
        action = intervention.before(optimizer, self.current.parameters.last_gradient_norm())
        if action:
            self.journal.add_event(self.current.step, "intervention", action)

    def _take_sample(self, optimizer: Optimizer | None, start: float) -> float:
        """Take the trace from the sampler; return the current time."""
        if self.sampler is None or not self.sampler.is_armed:
            return start
        self.sampler.end_pass()
        self._disarm_others()
        record = self.current
        record.use_root_losses()
        if not record.losses and self.sampler.model_loss is not None:
            record.losses.append(to_number(self.sampler.model_loss))
        loss = mean_loss(record.losses)
        scale, _ = self.scaler.read(peek=True)
        if record.raw_gradients is not None and record.parameters.gradients and len(self.optimizers) == 1:
            norm = record.parameters.last_gradient_norm()
            record.clipped_share = record.raw_gradients.clipped_share(norm, scale or 1.0)
        without_gradient = self._parameters.without_gradient(record.stepped - {id(optimizer)})
        norms = record.parameters.gradient_norms() if self.journal.ranks.sharded else None
        record.trace = self.sampler.take(optimizer, loss, scale or 1.0, without_gradient, norms)
        return record.charge(Level.TRACE, start - self.sampler.seconds)

    def _end(self) -> None:
        """End the step: charge it to the budget, record it, and open the next one."""
        record = self.current
        record.use_root_losses()
        self.stall.add_step()
        self._compare_replicas(record.step + 1)
        if record.level >= Level.TRACE:
            self._take_sample(None, perf_counter())
            self.samples.count_missed(record.step, record.trace, self.sampler)
        start = perf_counter()
        if record.start is not None:
            record.seconds = start - record.start
            record.training_seconds = max(record.seconds - record.watch_seconds, 0.0)
        if record.level is Level.LOSS:
            self._light_steps.add(record.step, start, record.losses, max_learning_rate(self.optimizers))
            if self.ledger.changes:
                self._check_loop(record.step)
            if record.losses:
                self._check_loss(record)
        else:
            record.loop = self.ledger.take()
            if record.ready:
                self._finish(record)
            else:
                self._unfinished = record
        end = perf_counter()
        record.costs[Level.ROW] = record.costs.get(Level.ROW, 0.0) + end - start - record.read_seconds
        self._charge(record)
        self._open_next(record.step + 1, end)

    def _open_next(self, step: int, since: float) -> None:
        """Open the next step, and charge the time since the last one was charged, such as setting hooks."""
        self.current = self._open(step, None)
        self.is_light = (
            self.current.level is Level.LOSS
            and len(self.optimizers) == 1
            and self._unfinished is None
            and not self.scaler.has_scaler
            and not self.journal.ranks.sharded  # those ranks must plan at the same steps, and light steps go by time
        )
        self._next_charge = step + 1
        self._light_steps.mark_charged()
        self.current.start = now = perf_counter()
        self.schedule.add_base_cost(now - since)

    def _charge(self, record: StepRecord) -> None:
        """Charge the step to the budget, and plan. The time of the writing thread counts like the watch's own."""
        record.costs[Level.ROW] = record.costs.get(Level.ROW, 0.0) + self.journal.take_writer_seconds()
        record.training_seconds = max(0.0, record.training_seconds - self._charge_ledger())
        usual = self.schedule.step_seconds
        if record.start is not None:
            if record.level >= Level.BLOCKS and usual is not None:  # hooks also slow down the pass itself
                source = self.exits if self.sampler is None or record.level is Level.BLOCKS else self.sampler
                record.charge_slowdown(source.pass_start, usual)
            self.schedule.add_step(record.training_seconds)
        self.schedule.add_base_cost(record.loss_seconds)
        self.schedule.add_costs(record.level, record.costs)
        self.schedule.add_measurement(record.step, record.level)
        if self.schedule.needs_plan(record.step, record.level):
            self._plan(record.step)

    def _plan(self, step: int) -> None:
        self.schedule.plan(step)
        self.journal.ranks.synchronize(self.schedule)
        self.journal.collect_rank_events()

    def _finish(self, record: StepRecord) -> None:
        """Record a measured step and run the checks."""
        start = perf_counter()
        loss_scale = self.problems.report_scale(record.step)
        scalars, by_parameter = record.numbers(max_learning_rate(self.optimizers), loss_scale)
        vectors = {name: (per_parameter.AXIS, values) for name, values in by_parameter.items()}
        if record.trace is not None:
            vectors |= self.samples.add(record.step, record.trace, self._parameters.names)
            self._locate_exits(record.trace)
            record.read_seconds = record.charge(Level.TRACE, start) - start
        if record.block_moments is not None:
            moments = record.block_moments.numbers()
            vectors |= {name: (AXIS, self.samples.on_axis(values)) for name, values in moments.items()}
        scalars |= {"watch_seconds": record.watch_seconds, "overhead": self.schedule.overhead}
        self.flush()
        self.new_alerts += self.journal.add_step(record.step, scalars, vectors)
        self._check_finite(record.step, scalars)
        self.new_alerts += self.samples.make_affordable_report()

    def _locate_exits(self, trace: Trace) -> None:
        """Make blocks measurable without a trace; not those of a compiled model, in which hooks do not run."""
        profile = self.samples.profile
        if self.sampler is not None and not is_compiled(self.sampler.model) and profile is not None:
            self.exits.locate(self.sampler.model, trace, profile)
            if self.exits.is_located:
                self.schedule.unavailable.discard(Level.BLOCKS)

    def _check_finite(self, step: int, scalars: dict[str, float]) -> None:
        """Report non-finite values, and trace the next pass to find their origin; all ranks must measure the same."""
        begins = self.problems.report_non_finite(step, scalars)
        if begins and self.sampler is not None and not self.journal.ranks.sharded:
            self.schedule.trace_next(step)
            self._next_charge = step

    def _build_parameter_table(self) -> ParameterTable:
        table = build_parameter_table(self.model, self.optimizers)
        self.journal.set_layout(move_layout(self.journal.history.layout, table.names))
        return table

    def _update_parameter_table(self, optimizer: Optimizer) -> None:
        if not self._parameters.is_current(optimizer):
            self._parameters = self.current.parameters.table = self._build_parameter_table()
