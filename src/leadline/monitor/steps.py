"""A step of training from the first optimiser's step to the last one's, and what is measured on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.monitor import parameters as per_parameter
from leadline.monitor.block_exits import Exits
from leadline.monitor.budget import PAUSE, Level, Timetable
from leadline.monitor.clipping import Intervention, RawGradients, removed
from leadline.monitor.journal import Journal
from leadline.monitor.layout import AXIS, carried
from leadline.monitor.mixed_precision import overflowed, pending_scale
from leadline.monitor.norms import total
from leadline.monitor.parameters import Gauges, Roster, highest_rate, make_roster
from leadline.monitor.sampler import UNSEEN, Sampler, Samples, is_compiled
from leadline.monitor.stalls import Troubles
from leadline.monitor.step_record import Call, Round, Tally, mean, number, with_closure
from leadline.records import Trace
from leadline.records.run import Alert

TOGETHER = 64  # light steps that are entered into the account at once; ours: as many as between two plans
PATIENCE = 4  # samples in a row in which the model was not called, before none is tried any more; ours


class Steps:
    """Follows the optimisers' steps. A step is over when all of them have stepped, or one of them steps again."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        journal: Journal,
        table: Timetable,
        sampler: Sampler | None,
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.journal, self.table, self.sampler = journal, table, sampler
        self.samples = Samples(journal, table)
        self.exits = Exits()
        table.unable.add(Level.BLOCKS)
        self.troubles = Troubles(model, journal)
        self.scaling, self.patience = self.troubles.scaling, self.troubles.patience
        self.intervention: Intervention | None = None
        self.told: list[Alert] = []
        """Alerts that nobody was told of yet."""
        self._roster = self._make_roster()
        self._tally = Tally()
        self._late: Round | None = None
        self._written = 0.0
        self._unseen = 0
        self._until = table.first
        self.is_light = False
        """Of the step under way nothing but the loss is wanted, and there is one optimiser and no scaler to follow."""
        self.round = self._open(table.first, None)

    def begin(self, optimizer: Optimizer, call: Call) -> Call | None:
        """An optimiser is about to step; returns the arguments it is to be called with instead, if any."""
        start = perf_counter()
        if self._late is not None:
            self._finish(self._late)
            self._late = None
        if id(optimizer) in self.round.stepped:
            self._end()
        self.round.stepped.add(id(optimizer))
        self.scaling.look()
        changed = with_closure(call, partial(self._closure_ran, optimizer))
        if changed is None:
            start = self._read(optimizer, start)
            if self.intervention is not None:
                self._intervene(self.intervention, optimizer)
        self.round.took(Level.ROW, start)
        return changed

    def end(self, optimizer: Optimizer) -> None:
        """An optimiser has stepped."""
        if self.is_light and not self.round.stepped:
            self.tick()
            return
        start = perf_counter()
        if self.intervention is not None:
            self.intervention.after(optimizer)
        if self.round.level >= Level.UPDATES:
            self.round.gauges.read_updates(optimizer)
            self.round.took(Level.UPDATES, start)
        if len(self.round.stepped) == len(self.optimizers):
            self._end()

    def loss(self, loss: Tensor | float) -> None:
        start = perf_counter()
        told, losses = number(loss), self.round.losses
        losses.append(told)
        if type(told) is float and not math.isfinite(told):
            self.troubles.blame(self.round.step, loss)
        if self.patience.wears_out(loss):
            self.told += self.troubles.note_stall(self.round.step)
            del losses[:-1]
        self.round.telling += perf_counter() - start

    def unclipped(self, norm: Tensor | float) -> None:
        self.round.unclipped.append(number(norm))

    def hand_over(self, *, ready: bool = False) -> None:
        """Steps of which only the loss was kept become part of the history and of the run file."""
        if self._tally:
            self.journal.add_rows(self._tally.take(ready=ready))

    def disarm(self) -> None:
        """Nothing is left on the model or its parameters."""
        if self.sampler is not None:
            self.sampler.disarm()
        if self.round.raw is not None:
            self.round.raw.disarm()
        self.exits.disarm()

    def close(self) -> None:
        """Finish what was begun: the last step, and the reports that are still owed."""
        self.disarm()
        if self._late is not None:
            self._finish(self._late)
            self._late = None
        if self.round.stepped:
            self._finish(self.round)
            self.round.stepped.clear()
        self.hand_over()
        self.told += self.troubles.at_end(self.round.step)
        self.told += self.journal.ask(last=True)
        self.told += self.samples.make_all()

    def _open(self, step: int, began: float | None) -> Round:
        """The next step, and the hooks it needs."""
        opened = Round(step, self.table.level(step), Gauges(self._roster), began)
        if opened.level >= Level.TRACE and self.sampler is not None:
            self.sampler.arm()
            if self.journal.ranks.world == 1:  # else gradients are made before they are averaged
                held = [each for parameters in self._roster.held.values() for each in parameters]
                opened.raw = RawGradients(held)
                opened.raw.arm()
        if opened.level is Level.BLOCKS:
            self.exits.arm()
        else:
            self.exits.disarm()
        return opened

    def tick(self) -> None:
        """The end of a light step: keep its loss. What else there is to do is done for several steps together."""
        now, here = perf_counter(), self.round
        self._tally.add(here.step, now, here.losses, highest_rate(self.optimizers), here.telling)
        if here.losses:
            self._note_loss(here)
            self.patience.stepped()
            here.losses = []
        here.step += 1
        here.telling = perf_counter() - now  # of the next step, which has just begun
        if here.step >= self._until or now >= self.journal.hand_over_at:
            self._settle_ticks(here)

    def _settle_ticks(self, here: Round) -> None:
        """Enter light steps into the account, hand them over if it is time, and see what the next one needs.

        By processor time: who waits for the interpreter while another process has the machine waits anyway.
        """
        start, last = thread_time(), here.step - 1
        took, own = self._tally.since_mark(here.began)
        for seconds in took:
            self.table.stepped(seconds)
        if perf_counter() >= self.journal.hand_over_at or self._tally.is_full:
            self._hand_over_ready()
        if self.table.wants_plan(last, Level.LOSS):
            self._plan(last)
        self.table.kept(own + thread_time() - start)
        here.began, here.telling = perf_counter(), 0.0
        if self.table.level(here.step) is Level.LOSS:
            self._until = min(here.step + TOGETHER, *self.table.due.values())
        else:
            self._go_on(here.step, here.began)

    def _note_loss(self, here: Round) -> None:
        """A loss that is not finite is said at once, where reading it costs no wait."""
        last = here.losses[-1]
        if self.troubles.sick or (type(last) is float and not math.isfinite(last)):
            if not self.troubles.sick:
                self.hand_over()  # so that the timeline has this step
            self._note_trouble(here.step, {"loss": mean(here.losses) or 0.0})

    def _hand_over_ready(self) -> None:
        """What waits becomes readable, and what was written since the last time is paid."""
        self.hand_over(ready=True)
        written, self._written = self._written, self.journal.seconds
        self.table.kept(self._written - written)

    def _closure_ran(self, optimizer: Optimizer, found: Any) -> None:
        """Gradients are there: they are read as those of other optimisers are before the step."""
        start = perf_counter()
        if isinstance(found, Tensor | float) and not self.round.losses:
            self.round.losses.append(number(found))
        self.round.took(Level.ROW, self._read(optimizer, start))

    def _read(self, optimizer: Optimizer, start: float) -> float:
        """Gradients are there and the step has not been made."""
        here = self.round
        if here.level >= Level.GRADIENTS:
            start = here.took(Level.ROW, start)
            self._renew_roster(optimizer)
            here.gauges.read_gradients(optimizer, pending_scale(optimizer))
            start = here.took(Level.GRADIENTS, start)
        if here.level >= Level.UPDATES:
            here.gauges.keep_weights(optimizer)
            start = here.took(Level.UPDATES, start)
        if len(here.stepped) == len(self.optimizers):
            if here.level >= Level.TRACE:
                start = self._take(optimizer, start)
            elif self.exits.listening:
                scale, _ = self.scaling.read(peek=True)
                here.glance = self.exits.take(scale or 1.0)
                start = here.took(Level.BLOCKS, start - self.exits.inside)
        if overflowed(optimizer):
            self.journal.event(here.step, "skipped step", "the fused optimiser was told of an overflow")
        return start

    def _intervene(self, intervention: Intervention, optimizer: Optimizer) -> None:
        done = intervention.before(optimizer, self.round.gauges.latest_norm())
        if done:
            self.journal.event(self.round.step, "intervention", done)

    def _take(self, optimizer: Optimizer | None, start: float) -> float:
        """End the sample."""
        if self.sampler is None or not self.sampler.armed:
            return start
        self.disarm()
        if not self.round.losses and self.sampler.loss_of_output is not None:
            self.round.losses.append(number(self.sampler.loss_of_output))
        loss = mean(self.round.losses)
        scale, _ = self.scaling.read(peek=True)
        if self.round.raw is not None and len(self.optimizers) == 1:
            self.round.clipped = self.round.raw.removed(self.round.gauges.latest_norm(), scale or 1.0)
        gone = self._roster.used_up(self.round.stepped - {id(optimizer)})
        norms = self.round.gauges.gradient_norms() if self.journal.ranks.sharded else None
        self.round.trace = self.sampler.take(optimizer, loss, scale or 1.0, gone, norms)
        return self.round.took(Level.TRACE, start - self.sampler.inside)

    def _end(self) -> None:
        """All optimisers have stepped: settle the account, write the step down, and open the next."""
        here = self.round
        self.patience.stepped()
        if here.level >= Level.TRACE:
            self._take(None, perf_counter())
            self._note_unseen(here)
        start = perf_counter()
        if here.began is not None:
            here.seconds = start - here.began
            here.plain = max(here.seconds - here.own, 0.0)
        if here.level is Level.LOSS:
            self._tally.add(here.step, start, here.losses, highest_rate(self.optimizers))
            if here.losses:
                self._note_loss(here)
        elif here.ready:
            self._finish(here)
        else:
            self._late = here
        settled = perf_counter()
        here.costs[Level.ROW] = here.costs.get(Level.ROW, 0.0) + settled - start - here.read
        self._settle(here)
        self._go_on(here.step + 1, settled)

    def _go_on(self, step: int, since: float) -> None:
        """Open the next step; what was done since the last one was settled, hooking the model, say, is paid too."""
        self.round = self._open(step, None)
        self.is_light = (
            self.round.level is Level.LOSS
            and len(self.optimizers) == 1
            and self._late is None
            and not self.scaling.found
            and not self.journal.ranks.sharded  # whose ranks must plan at the same steps, and these are settled by time
        )
        self._until = step + 1
        self._tally.mark()
        self.round.began = now = perf_counter()
        self.table.kept(now - since)

    def _note_unseen(self, here: Round) -> None:
        """A model whose parts are called one by one is never called itself: do not wait for it at every step."""
        if here.trace is None and self.sampler is not None and self.sampler.taken:
            self.table.soon(here.step)  # another watch has it: take the next
            return
        self._unseen = 0 if here.trace is not None else self._unseen + 1
        if self._unseen == PATIENCE:
            if self.table.every is None:
                self.table.highest = Level.UPDATES
            self.journal.event(here.step, "warning", UNSEEN)

    def _settle(self, done: Round) -> None:
        """Enter the step into the account, and plan. What the writing thread takes counts as if it were ours."""
        written, self._written = self._written, self.journal.seconds
        done.costs[Level.ROW] = done.costs.get(Level.ROW, 0.0) + self._written - written
        usual = self.table.step_seconds
        if done.began is not None:
            if done.level >= Level.BLOCKS and usual is not None:  # hooks cost more than what they do
                done.plain -= self._paused(done, usual)
                done.costs[done.level] = done.costs.get(done.level, 0.0) + max(0.0, done.plain - usual)
                done.plain = min(done.plain, usual)
            self.table.stepped(done.plain)
        self.table.kept(done.telling)
        for level, seconds in done.costs.items():
            if done.level is Level.LOSS:
                self.table.kept(seconds)
            else:
                self.table.cost(level, seconds)
        self.table.ran(done.step, done.level)
        if self.table.wants_plan(done.step, done.level):
            self._plan(done.step)

    def _paused(self, done: Round, usual: float) -> float:
        """Seconds of an evaluation, say, that lay between the last step and the pass that was followed."""
        follower = self.exits if self.sampler is None or done.level is Level.BLOCKS else self.sampler
        entered = follower.entered
        waited = 0.0 if entered is None or done.began is None else entered - done.began
        return waited if waited > PAUSE * usual else 0.0

    def _plan(self, step: int) -> None:
        self.table.plan(step)
        self.journal.ranks.agree(self.table)
        self.journal.gather()

    def _finish(self, done: Round) -> None:
        """Write a step down and ask the alarms about it."""
        start = perf_counter()
        scalars, vectors = self._numbers(done)
        placed = {name: (per_parameter.AXIS, values) for name, values in vectors.items()}
        if done.trace is not None:
            placed |= self.samples.add(done.step, done.trace, self._roster.names)
            self._learn_exits(done.trace)
            done.read = done.took(Level.TRACE, start) - start
        if done.glance is not None:
            numbers = done.glance.numbers()
            placed |= {name: (AXIS, self.samples.on_axis(values)) for name, values in numbers.items()}
        scalars["watch_seconds"] = done.own
        self.hand_over()
        self.told += self.journal.put(done.step, scalars, placed)
        self._note_trouble(done.step, scalars)
        self.told += self.samples.make_affordable()

    def _learn_exits(self, seen: Trace) -> None:
        """From now on blocks can be looked at without a trace; not those of a compiled model, which has no hooks."""
        profile = self.samples.profile
        if self.sampler is not None and not is_compiled(self.sampler.model) and profile is not None:
            self.exits.learn(self.sampler.model, seen, profile)
            if self.exits.known:
                self.table.unable.discard(Level.BLOCKS)

    def _numbers(self, done: Round) -> tuple[dict[str, float], per_parameter.Vectors]:
        scalars: dict[str, float] = {"step_seconds": done.seconds} if done.seconds else {}
        if (loss := mean(done.losses)) is not None:
            scalars["loss"] = loss
        if (rate := highest_rate(self.optimizers)) is not None:
            scalars["lr"] = rate
        vectors = done.gauges.vectors()
        for name, values in vectors.items():
            scalars[name] = total([each for each in values if not each < 0])
        if done.clipped is not None:
            scalars["grad_clip"] = done.clipped
        if (share := removed(done.unclipped, scalars.get("grad_norm"))) is not None:
            scalars["grad_clip"] = share
        if "grad_norm" in vectors:
            scalars["non_finite"] = sum(not math.isfinite(each) for each in vectors["grad_norm"])
        if (scale := self.troubles.note_scale(done.step)) is not None:
            scalars["loss_scale"] = scale
        return scalars, vectors

    def _note_trouble(self, step: int, scalars: dict[str, float]) -> None:
        """The next pass is followed to see where from, unless it is sharded: then all ranks look at the same steps."""
        begins = self.troubles.note(step, scalars)
        if begins and self.sampler is not None and not self.journal.ranks.sharded:
            self.table.soon(step)
            self._until = step

    def _make_roster(self) -> Roster:
        roster = make_roster(self.model, self.optimizers)
        self.journal.lay_out(carried(self.journal.history.layout, roster.names))
        return roster

    def _renew_roster(self, optimizer: Optimizer) -> None:
        if not self._roster.is_current(optimizer):
            self._roster = self.round.gauges.roster = self._make_roster()
