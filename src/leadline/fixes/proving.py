"""Proofs of candidates on a base, remembered: each is looked at once, trained once, and trained longer at most once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from leadline.fixes.candidates import Candidate
from leadline.fixes.choosing import left_out, undecided
from leadline.fixes.fix import Patient
from leadline.fixes.rates import best_rate, with_rate
from leadline.fixes.trial import Losses, OutOfTimeError, Trials
from leadline.fixes.verify import Proof, concluded, look_again, train_beside, treated
from leadline.fixes.yardstick import Yardstick
from leadline.records import Edit, Trial

Edits = tuple[Edit, ...]
OUT_OF_TIME = "the budget was spent before"
CONFIRM_SEED, CONFIRM_LONGER = (
    1,
    3,
)  # of a longer training: another order of the batches, three times the steps (ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What fixes are tried on: the untreated model, or a copy with all that was kept so far."""

    patient: Patient
    losses: Losses
    """Of its own first trial."""
    edits: Edits = ()

    def with_edits(self, candidate: Candidate) -> Edits:
        return self.edits + candidate.edits


@dataclass(slots=True, kw_only=True)
class Proving:
    """Lives while a repair is looked for."""

    trials: Trials
    yardstick: Yardstick = field(default_factory=Yardstick)
    proofs: list[tuple[Edits, Proof]] = field(default_factory=list)
    """Each with what had been kept before it."""
    longer: list[tuple[Edits, Losses]] = field(default_factory=list)
    """Longer trainings with another seed, each with all its edits."""

    def look(self, base: Base, candidate: Candidate) -> Proof:
        """The second trace."""
        if not self.trials.has_time():
            return Proof(candidate=candidate, outcome=candidate.outcome(OUT_OF_TIME))
        if known := self._known(base, candidate):
            return known
        self.trials.show(0, 0, f"tracing again with {candidate.fix}")
        began = self.trials.budget.clock()
        proof = look_again(base.patient, candidate)
        return self._remember(base, proof, began)

    def train(self, base: Base, proof: Proof) -> Proof:
        """The short trial of one that passed the second trace."""
        if not proof.open:
            return proof
        if not self.trials.has_time():
            return left_out(proof, OUT_OF_TIME)
        began = self.trials.budget.clock()
        try:
            trained = train_beside(proof, base.patient, self.trials, base.losses, self.yardstick)
        except OutOfTimeError:
            return left_out(proof, OUT_OF_TIME)
        return self._remember(base, trained, began)

    def extend(self, base: Base, proof: Proof) -> Proof:
        """The longer trial of one that the short one did not decide."""
        if not self.trials.has_time():
            return proof
        began = self.trials.budget.clock()
        control, losses = self.train_longer(base), self.train_longer(base, proof.candidate)
        trial = Trial(untreated=control, treated=losses, fresh=self.trials.fresh)
        return self._remember(base, concluded(proof, base.patient, trial, self.yardstick), began)

    def at_best_rate(self, base: Base, proof: Proof) -> list[Proof]:
        """The same at the rate that ends lowest in short trials, if it is another; both are then trained longer."""

        def short(factor: float) -> Losses:
            return self._try(base, with_rate(proof.candidate, factor))

        factor = best_rate(proof.losses, short)
        found = []
        if factor != 1:
            found = [self.train(base, self.look(base, with_rate(proof.candidate, factor)))]
            found = [self.extend(base, each) if undecided(each) else each for each in found]
        for each in (proof, *found):
            if each.verified and not self.settled(base, each) and self.trials.has_time():
                self.train_longer(base, each.candidate)
        return found

    def settled(self, base: Base, proof: Proof) -> bool:
        """It comes near the reference, in its longer training if there was one."""
        longer = self._known_longer(base.with_edits(proof.candidate))
        return self.yardstick.enough(longer or proof.losses)

    def train_longer(self, base: Base, candidate: Candidate | None = None) -> Losses:
        """The base, or the base with a candidate, for longer and with another seed; once begun it is finished."""
        edits = base.edits if candidate is None else base.with_edits(candidate)
        if known := self._known_longer(edits):
            return known
        case = base.patient.case if candidate is None else treated(base.patient, candidate)
        label = f"training longer: {'repaired' if edits else 'untreated'}"
        losses = self.trials.run(case, label, seed=CONFIRM_SEED, longer=CONFIRM_LONGER, finish=True)
        self.longer.append((edits, losses))
        return losses

    def _try(self, base: Base, candidate: Candidate) -> Losses:
        """A trial without looking first; nothing where it cannot be made, raises, or there is no time."""
        if not self.trials.has_time():
            return ()
        try:
            return self.trials.run(treated(base.patient, candidate), f"training with {candidate.fix}")
        except Exception:  # whatever it is, this candidate is not the one
            return ()

    def _known(self, base: Base, candidate: Candidate) -> Proof | None:
        """What was found of the same edits on the same model before; another attempt may come to it again."""
        asked = (base.edits, candidate)
        found = (proof for kept, proof in reversed(self.proofs) if (kept, proof.candidate) == asked)
        return next(found, None)

    def _known_longer(self, edits: Edits) -> Losses:
        return next((losses for known, losses in self.longer if known == edits), ())

    def _remember(self, base: Base, proof: Proof, began: float) -> Proof:
        spent = proof.outcome.seconds + self.trials.budget.clock() - began
        timed = replace(proof, outcome=changed(proof.outcome, seconds=spent))
        self.proofs.append((base.edits, timed))
        return timed
