"""What the watch takes, charged to its budget: by the watch itself, by its loop ledger and by the writing thread."""

from __future__ import annotations

from time import thread_time

from leadline.monitor.budget import Level, MeasurementSchedule
from leadline.monitor.journal import Journal
from leadline.monitor.light_steps import LightSteps, RunShare
from leadline.monitor.loop_calls import count_unseen_steps
from leadline.monitor.loop_ledger import FOLLOWED_STEPS, LoopLedger
from leadline.monitor.step_record import StepRecord


class StepCharges:
    """Credits the steps of a training to the schedule, and charges what watching them took.

    What is charged and earned is without the time in which the machine ran another process.
    """

    def __init__(self, schedule: MeasurementSchedule, journal: Journal, ledger: LoopLedger) -> None:
        self._schedule, self._journal, self._ledger = schedule, journal, ledger
        self._followed = 0
        """Steps of the ledger that are charged."""
        self._largest_interval = 1
        self._run_share, self._share = RunShare(), 1.0

    def charge_ledger(self, step: int) -> float:
        """Charge what the ledger has taken since the last time, and return it. Wake it if that is affordable."""
        ledger, followed = self._ledger, self._followed
        seconds, ledger.seconds, self._followed = self._share * ledger.seconds, 0.0, ledger.steps
        self._schedule.add_ledger_cost(seconds, ledger.steps - followed)
        if ledger.is_resting and self._schedule.affords_ledger(step, FOLLOWED_STEPS):
            ledger.wake()
        return seconds

    def charge_writing(self, start: float) -> None:
        """Charge this thread since `start`, by `thread_time`, for handing over steps, and the thread that writes."""
        writer_seconds = self._journal.take_writer_seconds()
        self._schedule.add_writing_cost(writer_seconds + thread_time() - start)

    def charge_light_steps(self, light_steps: LightSteps, first_start: float | None, step: int) -> None:
        """Charge the light steps before this one, of which the first began at `first_start`, and plan."""
        start, schedule = thread_time(), self._schedule
        charged = light_steps.charge(first_start)
        share = self._share = self._run_share.take()
        ledger_seconds = self.charge_ledger(step) / max(1, charged.count)
        for seconds, count, last in charged.training:
            schedule.add_step(max(0.0, share * seconds - count * ledger_seconds), count, share * last)
        schedule.add_loss_cost(charged.watching, charged.count - len(charged.watching))
        count_unseen_steps(charged.count)
        self._plan_if_due(step - 1, Level.LOSS)
        self._journal.set_pace(schedule.hold_seconds, 1 / share)
        schedule.add_base_cost(thread_time() - start)

    def charge_step(self, record: StepRecord, pass_start: float | None) -> None:
        """Charge a step that was measured or is not light, and plan; `pass_start` is that of a pass with hooks."""
        schedule, skipped = self._schedule, record.step - record.first_step
        self._share = self._run_share.take()
        record.scale(self._share)
        record.training_seconds = max(0.0, record.training_seconds - self.charge_ledger(record.step))
        usual = schedule.step_seconds
        if record.start is not None:
            if record.level >= Level.BLOCKS and usual is not None:  # hooks also slow down the pass itself
                record.charge_slowdown(pass_start, usual)
            schedule.add_step(record.training_seconds, skipped + 1)
        schedule.add_base_cost(self._journal.take_writer_seconds())
        if record.level is Level.LOSS:
            schedule.add_loss_cost([record.watch_seconds], skipped)
        else:
            schedule.add_base_cost(record.loss_seconds)
            schedule.add_costs(record.costs)
        schedule.add_measurement(record.step, record.level)
        self._plan_if_due(record.step, record.level)

    def _plan_if_due(self, step: int, level: Level) -> None:
        if self._schedule.needs_plan(step, level):
            self._schedule.plan(step)
            self._announce_interval(step, self._schedule.loss_interval)
            self._journal.ranks.synchronize(self._schedule)
            self._journal.collect_rank_events()

    def _announce_interval(self, step: int, interval: int) -> None:
        """Record how many losses are left out when that changes, and report it when they are twice as many as ever."""
        if interval == self._largest_interval == 1:
            return
        self._ledger.set_number("loss_interval", interval)
        if interval.bit_length() > self._largest_interval.bit_length():
            self._largest_interval = interval
            milliseconds = 1e3 * (self._schedule.step_seconds or 0.0)
            message = (
                f"from here on, the loss of about one step in {interval} is recorded: a step takes "
                f"{milliseconds:.2g} ms, and the budget of {100 * self._schedule.budget:g} % has no room for more"
            )
            self._journal.add_event(step, "recording", message, {"interval": interval})

    def close(self) -> None:
        self._run_share.close()
