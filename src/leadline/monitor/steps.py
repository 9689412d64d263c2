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
from leadline.monitor.light_steps import LightSteps, SkippedSteps
from leadline.monitor.loop_gradients import parameter_ids
from leadline.monitor.loop_ledger import LoopLedger
from leadline.monitor.mixed_precision import has_overflow, pending_scale
from leadline.monitor.parameters import (
    ParameterMeasurements,
    ParameterTable,
    build_parameter_table,
    learning_rates,
)
from leadline.monitor.sampler import Sampler, Samples, is_compiled
from leadline.monitor.step_charges import StepCharges
from leadline.monitor.step_losses import BackwardLosses, mean_loss, to_number
from leadline.monitor.step_problems import StepProblems
from leadline.monitor.step_record import Call, StepRecord, wrap_closure
from leadline.records import Trace
from leadline.records.run import Alert
from leadline.tracer.stats import Known, transfer

# Derived: recorded light steps that are charged together; as many as lie between two plans.
LIGHT_STEPS_PER_CHARGE = PLAN_INTERVAL
# Heuristic: the same, with the steps in between; the ledger may be due at a charge only.
MAX_STEPS_PER_CHARGE = 256
# Heuristic: seconds that losses on a device wait before they are fetched and written. Each time, the host waits for the
# steps that it has queued, which is below a percent of that.
DEVICE_HOLD_SECONDS = 1.0


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
        self.losses = BackwardLosses(self.problems)
        self.ledger = LoopLedger(optimizers, self)
        self.charges = StepCharges(schedule, journal, self.ledger)
        self.intervention: Intervention | None = None
        self.new_alerts: list[Alert] = []
        """Alerts that were not yet passed to the user."""
        self._parameters = self._build_parameter_table()
        self._light_steps, self.skipped = LightSteps(), SkippedSteps()
        self._unfinished: StepRecord | None = None
        """The previous step, if a device still computed its measurements when it ended."""
        self._has_replicas = journal.ranks.world_size > 1
        self._last_skipped = 0
        """The last step that was skipped and had a loss."""
        self._next_charge = schedule.first_step
        """The step at which light steps are charged to the budget."""
        self.is_light = False
        """True if only the loss of the current step is recorded, with one optimizer and no scaler."""
        self.add_hooks: Callable[[Sequence[Optimizer]], None] = lambda optimizers: None
        """Called with optimizers whose steps the watch follows from now on."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called now and then, when there is something new to show."""
        self.current = self._open(schedule.first_step, None)

    @property
    def step(self) -> int:
        """The number of the current step."""
        return self.current.step + self.skipped.counted

    def expect_optimizer(self, optimizer: Optimizer) -> None:
        self.record_losses()
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
        if self.skipped.is_active:
            if self.skipped.count(self.current, optimizer, len(self.optimizers)):
                self.record_losses()
            return
        start = perf_counter()
        if self.intervention is not None:
            self.intervention.after(optimizer)
        if self.current.level >= Level.UPDATES:
            self.current.parameters.measure_updates(optimizer)
            self.current.charge(Level.UPDATES, start)
        if len(self.current.stepped) == len(self.optimizers):
            self._end()
            self._skip_losses()

    def loss(self, loss: Tensor | float) -> None:
        start = perf_counter()
        self.losses.is_needed = False
        if self.skipped.is_active:
            self._count_skipped_loss(loss)
            return
        value, losses = to_number(loss), self.current.losses
        losses.append(value)
        if type(value) is float and not math.isfinite(value):
            self.problems.locate_non_finite(self.current.step, loss)
        if self.stall.add_loss(loss):
            self.new_alerts += self.problems.report_stall(self.current.step)
            del losses[:-1]
        self.current.loss_seconds += perf_counter() - start

    def _count_skipped_loss(self, loss: Tensor | float) -> None:
        if self.step != self._last_skipped:
            self._last_skipped, self.stall.losses = self.step, 0
        if self.stall.add_loss(loss):
            self.new_alerts += self.problems.report_stall(self.step)

    def record_losses(self) -> None:
        """Record the losses of all steps from now on, or at least of the next one."""
        if self.skipped.is_active:
            self.skipped.settle(self.current)
            self.skipped.is_active, self.stall.losses = False, 0
            self.ledger.want_losses()
            self._light_steps.starts[self.current.step] = perf_counter()

    def _skip_losses(self) -> None:
        """Record no loss before the step that the schedule says, unless something needs to see the steps.

        Only called after a step: the hook before it sees steps that are not skipped.
        """
        step, interval = self.current.step, self.schedule.loss_interval
        if interval == 1 or self.current.level is not Level.LOSS or not self.ledger.is_resting:
            return
        until = min(step + interval, *self.schedule.due.values()) - 1
        is_plain = self.intervention is None and self._unfinished is None and not self._has_replicas
        if until > step and is_plain and not self.problems.is_non_finite:
            self.skipped.start(step, until, len(self.optimizers))
            self.ledger.skip_losses()

    def affords_steps(self, count: int) -> bool:
        """Charge the ledger, and return whether the budget has room for following so many steps."""
        self.charges.charge_ledger(self.step)
        return self.schedule.affords_ledger(self.step, count)

    def _compare_replicas(self, step: int) -> None:
        drift = self.journal.ranks.drift(step, self.model)
        if drift is not None:
            self.ledger.set_number("replica_drift", drift)

    def lose_ledger(self, error: Exception) -> None:
        message = f"the loop is no longer followed after an internal error: {type(error).__name__}: {error}"
        self.journal.add_event(self.step, "warning", message)

    def add_past_step(self, loss: float) -> None:
        """Record the loss of the step before the first one that is followed."""
        self._light_steps.add(self.current.step, perf_counter(), [loss], learning_rates(self.optimizers))
        self.schedule.skip_step()
        self.current.step += 1
        self._light_steps.mark_charged(self.current.step)

    def unclipped(self, norm: Tensor | float) -> None:
        self.current.unclipped.append(to_number(norm))

    def flush(self) -> None:
        """Add the light steps to the history and the run file."""
        if self._light_steps:
            self.journal.add_light_steps(self._light_steps.take())

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
        if self.skipped.is_active:
            self.record_losses()
            if self.step > self.skipped.first:
                self._light_steps.add(self.step - 1, perf_counter(), [], learning_rates(self.optimizers))
            self.current.stepped.clear()
        self.charges.close()
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
        self.losses.record = record
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
            rate = learning_rates(self.optimizers)
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
        if now >= self.journal.next_flush or self._light_steps.is_full:
            self._write_light_steps()
        if record.step >= self._next_charge:
            self._charge_light_steps(record)
        self._skip_losses()

    def _check_loop(self, step: int) -> None:
        """Record what changed in the loop with a light step, and look at it unless all is well."""
        numbers = self.ledger.take()
        self._light_steps.add_loop(step, numbers)
        if any(numbers.values()):
            self.flush()
            self.new_alerts += self.journal.update_alerts()

    def see_other_steps(self) -> None:
        """Look at a loop in which no watched optimizer steps, so that nothing else of it is recorded."""
        self.new_alerts += self.journal.judge_loop(self.step, self.ledger.take())

    def _write_light_steps(self) -> None:
        """Hand light steps to the writing thread, and charge what that takes."""
        start, is_on_device = thread_time(), self._light_steps.is_on_device
        self.flush()
        if is_on_device:
            self.journal.hold(DEVICE_HOLD_SECONDS)
        self.on_progress()
        self.charges.charge_writing(start)

    def _charge_light_steps(self, record: StepRecord) -> None:
        """Charge light steps to the budget, and decide what the next step needs."""
        self.charges.charge_light_steps(self._light_steps, record.start, record.step)
        record.start, record.first_step, record.loss_seconds = perf_counter(), record.step, 0.0
        if self.schedule.level(record.step) is Level.LOSS:
            steps = min(LIGHT_STEPS_PER_CHARGE * self.schedule.loss_interval, MAX_STEPS_PER_CHARGE)
            self._next_charge = min(record.step + steps, *self.schedule.due.values())
        else:
            self._open_next(record.step, thread_time())

    def _check_loss(self, record: StepRecord) -> None:
        """Report a non-finite loss immediately if reading it needs no wait."""
        last = record.losses[-1]
        if isinstance(last, Tensor):
            return
        if self.problems.is_non_finite or not math.isfinite(last):
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
        scale, _ = self.scaler.read(peek=True)
        if record.raw_gradients is not None and len(self.optimizers) == 1:
            record.raw_gradients.take(scale or 1.0)
        without_gradient = self._parameters.without_gradient(record.stepped - {id(optimizer)})
        norms = record.parameters.gradient_norms() if self.journal.ranks.sharded else None
        record.sample = self.sampler.take(optimizer, scale or 1.0, without_gradient, norms)
        return record.charge(Level.TRACE, start - self.sampler.seconds)

    def _end(self) -> None:
        """End the step: charge it to the budget, record it, and open the next one."""
        record = self.current
        record.use_root_losses()
        self.stall.add_step()
        self._compare_replicas(record.step + 1)
        if record.level >= Level.TRACE:
            self._take_sample(None, perf_counter())
            self.samples.count_missed(record.step, record.sample, self.sampler)
        start = perf_counter()
        if record.start is not None:
            record.seconds = start - record.start
            record.training_seconds = max(record.seconds - record.watch_seconds, 0.0)
        if record.level is Level.LOSS:
            self._light_steps.add(record.step, start, record.losses, learning_rates(self.optimizers))
            if self.ledger.changes:
                self._check_loop(record.step)
            if record.losses:
                self._check_loss(record)
        else:
            record.loop, record.rates = self.ledger.take(), learning_rates(self.optimizers)
            if record.ready:
                self._finish(record)
            else:
                self._unfinished = record
        self.on_progress()
        end, since = perf_counter(), thread_time()
        record.costs[Level.ROW] = record.costs.get(Level.ROW, 0.0) + end - start - record.read_seconds
        source = self.exits if self.sampler is None or record.level is Level.BLOCKS else self.sampler
        self.charges.charge_step(record, source.pass_start)
        self._open_next(record.step + 1, since)

    def _open_next(self, step: int, since: float) -> None:
        """Open the next step, and charge the processor time since the last one was charged, such as setting hooks."""
        self.current = self._open(step, None)
        self.is_light = (
            self.current.level is Level.LOSS
            and len(self.optimizers) == 1
            and self._unfinished is None
            and not self.scaler.has_scaler
            and not self.journal.ranks.sharded  # those ranks must plan at the same steps, and light steps go by time
        )
        self._next_charge = step + 1
        self._light_steps.mark_charged(step)
        self.schedule.add_base_cost(thread_time() - since)
        self.current.start = perf_counter()

    def _finish(self, record: StepRecord) -> None:
        """Record a measured step and run the checks."""
        start = perf_counter()
        known = self._fetch(record)
        scalars, by_parameter = record.numbers(self.problems.report_scale(record.step))
        vectors = {name: (per_parameter.AXIS, values) for name, values in by_parameter.items()}
        if record.sample is not None:
            trace = record.sample.read(scalars.get("loss"), known)
            vectors |= self.samples.add(record.step, trace, self._parameters.names)
            self._locate_exits(trace)
            record.read_seconds = record.charge(Level.TRACE, start) - start
        if record.block_moments is not None:
            moments = record.block_moments.numbers()
            vectors |= {name: (AXIS, self.samples.on_axis(values)) for name, values in moments.items()}
        scalars |= {"watch_seconds": record.watch_seconds, "overhead": self.schedule.overhead}
        self.flush()
        self.new_alerts += self.journal.add_step(record.step, scalars, vectors)
        self._check_finite(record.step, scalars)
        self.new_alerts += self.samples.make_affordable_report()

    def _fetch(self, record: StepRecord) -> Known:
        """Read everything that devices have computed for this step and those before it, in one transfer each."""
        known = transfer((*record.pending(), *self._light_steps.pending(), *self.ledger.pending()))
        record.receive(known)
        if known:
            self._light_steps.receive(known)
            self.ledger.receive(known)
        return known

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
