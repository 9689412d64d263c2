"""The search for a repair: what touches least is tried first, what helps is kept, and then one looks again.

A round tries the candidates stage by stage (roots before consequences, a nearer reach before a farther one). In each
stage all are traced again, and those with nothing against them are trained: many for a short while, the best of them
longer (`heats`). As soon as one ends lower, learns and is expected to train, the learning rate that goes with it is
looked for, and if it then comes near a small reference network (`yardstick`), the round is over. If no stage has such
a one, the best of those that made it better is kept as part of the repair. If there is none, those in doubt are
trained too; and if that does not help, two causes may hide each other: the most promising is carried along, and the
next round tries what could go with it.

Where no finding is left and the model still does not learn, whatever the check said of it, candidates are chosen by how
its training goes wrong (`symptoms`). At last the whole repair is trained beside the untreated model once more, longer
and with another seed. If it does not end lower again, the search begins anew without what it was made of, but first
with the same at a smaller rate if the loss was thrown about. What never held is never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from msgspec.structs import replace as changed

from leadline.case import Case
from leadline.fixes.candidates import Candidate, candidates, stages, together
from leadline.fixes.choosing import (
    heals,
    left_out,
    lowest,
    noted,
    promising,
    prospect,
    result,
    undecided,
)
from leadline.fixes.comparison import compare, end, steady, thrown
from leadline.fixes.fix import Fix, Patient
from leadline.fixes.rates import best_rate, with_rate
from leadline.fixes.symptoms import by_symptom
from leadline.fixes.trial import Losses, OutOfTimeError, Trials
from leadline.fixes.verify import (
    Proof,
    concluded,
    diagnose,
    look_again,
    patient_of,
    train_beside,
    treated,
)
from leadline.fixes.yardstick import Yardstick, yardstick_of
from leadline.records import Edit, Outcome, Trial

MOST_ATTEMPTS = 4  # ours: repairs that may fail to hold before the search gives up
MOST_ROUNDS = 8  # ours: a bound on fixes that each help a little; a repair of more parts is another network
MOST_CARRIED = 2  # ours: causes that may hide each other
MOST_TRIALS = 3  # ours: among those that reach equally far
MOST_HEATS = 6  # ours: of these, the best of shorter trials
HEAT = 0.3  # of a trial: twelve steps, as many as a comparison needs at least
STEADIER = 0.1  # ours: a decade; a third was tried on the bundled network, and is thrown about again
Edits = tuple[Edit, ...]
OUT_OF_TIME = "the budget was spent before"
CONFIRM_SEED, CONFIRM_LONGER = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    before: Patient
    after: Patient
    """The repaired copy; the untreated one again if nothing is recommended."""
    outcomes: tuple[Outcome, ...]
    edits: tuple[Edit, ...]
    trial: Trial | None
    """The last comparison; of a model that needed no repair, its own training alone."""
    yardstick: Yardstick


def search(case: Case, fixes: Sequence[Fix], trials: Trials) -> Found:
    """Look for edits after which the model trains. The case is left as it was."""
    untreated = diagnose(case)
    return Search(fixes=fixes, trials=trials, untreated=untreated, base=untreated).run()


@dataclass(slots=True, kw_only=True)
class Search:
    """Lives while a repair is looked for."""

    fixes: Sequence[Fix]
    trials: Trials
    untreated: Patient
    base: Patient
    """The untreated model with all that was kept so far."""
    yardstick: Yardstick = field(default_factory=Yardstick)
    control: Losses = ()
    """The training of `base`."""
    outcomes: list[Outcome] = field(default_factory=list)
    edits: Edits = ()
    blind: bool = False
    """Findings are exhausted: candidates are chosen by how training goes wrong."""
    steadier: list[Candidate] = field(default_factory=list)
    """Repairs that were thrown about, at a smaller rate; the next to be tried."""
    banned: list[Edits] = field(default_factory=list)
    """Edits of repairs that did not hold."""
    memory: list[tuple[Edits, Proof]] = field(default_factory=list)
    """Proofs, each with what had been kept before it."""
    long: list[tuple[Edits, Losses]] = field(default_factory=list)
    """Longer trainings with another seed, each with all its edits."""

    def run(self) -> Found:
        try:
            first = self.trials.run(self.base.case, "training the untreated model")
        except OutOfTimeError:
            self.outcomes += [each.outcome(OUT_OF_TIME) for each in candidates(self.base, self.fixes)]
            return self._found(None)
        self.yardstick = yardstick_of(self.untreated, self.trials, CONFIRM_LONGER)
        alone = Trial(untreated=first, treated=(), fresh=self.trials.fresh)
        if not self._needs_repair(first):
            return self._found(alone)
        first = self._until_it_shows(first)
        for _ in range(MOST_ATTEMPTS):
            self.control, self.blind = first, False
            self._repair()
            if not self.edits or (held := self._confirmed()):
                break
        return self._found(held if self.edits else alone)

    def _needs_repair(self, first: Losses) -> bool:
        """Something was found; or nothing, and still it does not learn, not even in a longer training."""
        if self.base.report.verdict != "trains":
            return True
        if self.yardstick.enough(first) or not self.trials.has_time():
            return False
        longer = self._longer(self.untreated, ())
        return not self.yardstick.idle and not (self.yardstick.learned(longer) and steady(longer))

    def _until_it_shows(self, first: Losses) -> Losses:
        """Training that goes well in a short trial and not in a longer one: all trials become longer."""
        if not self.yardstick.enough(first) or not self.trials.has_time():
            return first
        if self.yardstick.enough(self._longer(self.untreated, ())):
            return first
        self.trials.length = CONFIRM_LONGER
        return self.trials.run(self.base.case, "training the untreated model", finish=True)

    def _repair(self) -> None:
        """Rounds until the model is expected to train and does, or nothing helps any more."""
        carried: list[Proof] = []
        for _ in range(MOST_ROUNDS):
            if self._good() or not self.trials.has_time():
                return
            self.blind = self.blind or self.base.report.verdict == "trains"
            proofs = self._round(carried[-1] if carried else None)
            if best := self._best([each for each in proofs if each.verified]):
                self._keep(best)
                carried = []
            elif self.edits and self._learned():
                return
            elif (next_ := promising(proofs)) and len(carried) < MOST_CARRIED:
                carried.append(next_)
            elif not self.blind:
                self.blind, carried = True, []
            else:
                return

    def _good(self) -> bool:
        """With what was kept it is expected to train, and learns."""
        return bool(self.edits) and self.base.report.verdict == "trains" and self._learned()

    def _learned(self) -> bool:
        """The repair so far learns in its short training, or in a longer one."""
        if self.yardstick.enough(self.control):
            return True
        longer = self._longer(self.base, self.edits)
        return self.yardstick.learned(longer) and steady(longer)

    def _round(self, carried: Proof | None) -> list[Proof]:
        """Try all candidates, together with what is carried along; what came of each is written down."""
        proofs: list[Proof] = []
        todo = [*self._steadier(), *stages(self._candidates(carried))]
        while todo and not any(self._settles(each) for each in proofs):
            stage = [self._look(each) for each in todo.pop(0)]
            stage = self._train(stage, [each for each in stage if each.open and not each.doubt])
            proofs += [*stage, *self._at_better_rate(stage)]
        if not any(each.verified for each in proofs):
            proofs = self._train(proofs, [each for each in proofs if each.open and each.doubt])
        told = [each.outcome("another fix was verified before its turn") for stage in todo for each in stage]
        self.outcomes = noted(self.outcomes, [*(each.outcome for each in proofs), *told])
        return proofs

    def _settles(self, proof: Proof) -> bool:
        """Nothing more has to be asked."""
        return heals(proof) and self.yardstick.enough(self._best_known(proof))

    def _best_known(self, proof: Proof) -> Losses:
        """Its longer training if there was one."""
        return self._known_longer(self.edits + proof.candidate.edits) or proof.losses

    def _at_better_rate(self, stage: Sequence[Proof]) -> list[Proof]:
        """The best of a stage at the rate that suits it, where it does not come near the reference as it is."""
        best = min((each for each in stage if heals(each)), key=result, default=None)
        if best is None or self._settles(best) or self.base.case.optimizer is None:
            return []
        factor = best_rate(best.losses, lambda factor: self._short(with_rate(best.candidate, factor)))
        found = best
        if factor != 1:
            found = self._trial(self._look(with_rate(best.candidate, factor)))
        for each in {id(best): best, id(found): found}.values():
            if each.verified and not self._settles(each) and self.trials.has_time():
                self._longer(self.base, self.edits + each.candidate.edits, each.candidate)
        return [found] if found is not best else []

    def _short(self, candidate: Candidate) -> Losses:
        """A first trial without looking; nothing where it cannot be made, raises, or there is no time."""
        if not self.trials.has_time():
            return ()
        try:
            return self.trials.run(treated(self.base, candidate), f"training with {candidate.fix}")
        except Exception:  # whatever it is, this rate is not the one
            return ()

    def _steadier(self) -> list[list[Candidate]]:
        """A stage of its own, once, and only at the beginning of an attempt: its edits are those of a whole repair."""
        found, self.steadier = self.steadier, []
        return [found] if found and not self.edits else []

    def _candidates(self, carried: Proof | None) -> list[Candidate]:
        patient = self.base if carried is None else diagnose(treated(self.base, carried.candidate))
        if self.blind:
            found = by_symptom(patient, self.fixes, self.control if carried is None else carried.losses)
        else:
            found = candidates(patient, self.fixes)
        if carried is not None:
            found = [together(carried.candidate, each) for each in found]
        return [each for each in found if each.edits not in self.banned or not each.edits]

    def _look(self, candidate: Candidate) -> Proof:
        if not self.trials.has_time():
            return Proof(candidate=candidate, outcome=candidate.outcome(OUT_OF_TIME))
        if known := self._known(candidate):
            return known
        self.trials.show(0, 0, f"tracing again with {candidate.fix}")
        began = self.trials.budget.clock()
        proof = look_again(self.base, candidate)
        return self._remember(proof, self.trials.budget.clock() - began)

    def _train(self, proofs: Sequence[Proof], chosen: Sequence[Proof]) -> list[Proof]:
        """The proofs, of which the chosen ones are trained, the most promising first and not too many."""
        order = self._heats(sorted(chosen, key=prospect))
        told = f"{MOST_TRIALS} others that promise as much were trained before it"
        trained = [self._trial(each) for each in order[:MOST_TRIALS]]
        trained += [left_out(each, told) for each in order[MOST_TRIALS:]]
        if not any(each.verified for each in trained):
            trained = self._extended(trained)
        return trained + [each for each in proofs if not any(each is other for other in chosen)]

    def _heats(self, order: list[Proof]) -> list[Proof]:
        """Where more are to be trained than there are places, those come first that end lowest in shorter trials."""
        if len(order) <= MOST_TRIALS:
            return order
        runs = [(self._heat(each), each) for each in order[:MOST_HEATS]]
        ranked = sorted(runs, key=lambda each: each[0])
        return [each for _, each in ranked] + order[MOST_HEATS:]

    def _heat(self, proof: Proof) -> float:
        if not self.trials.has_time():
            return float("inf")
        case = treated(self.base, proof.candidate)
        try:
            losses = self.trials.run(
                case, f"a heat of {proof.candidate.fix}", longer=HEAT * self.trials.length
            )
        except Exception:  # its trial, if it comes to that, tells what it was
            return float("inf")
        found = end(losses)
        return found if found == found else float("inf")

    def _extended(self, trained: Sequence[Proof]) -> list[Proof]:
        """The best of those that may still come to learn, trained longer beside the model without it."""
        best = min((each for each in trained if undecided(each)), key=lowest, default=None)
        return [self._extend(each) if each is best else each for each in trained]

    def _extend(self, proof: Proof) -> Proof:
        if not self.trials.has_time():
            return proof
        began = self.trials.budget.clock()
        control = self._longer(self.base, self.edits)
        losses = self._longer(self.base, self.edits + proof.candidate.edits, proof.candidate)
        trial = Trial(untreated=control, treated=losses, fresh=self.trials.fresh)
        found = concluded(proof, self.base, trial, self.yardstick)
        return self._remember(found, self.trials.budget.clock() - began)

    def _trial(self, proof: Proof) -> Proof:
        if not proof.open:
            return proof
        if not self.trials.has_time():
            return left_out(proof, OUT_OF_TIME)
        began = self.trials.budget.clock()
        try:
            trained = train_beside(proof, self.base, self.trials, self.control, self.yardstick)
        except OutOfTimeError:
            return left_out(proof, OUT_OF_TIME)
        return self._remember(trained, self.trials.budget.clock() - began)

    def _known(self, candidate: Candidate) -> Proof | None:
        """What was found of the same edits on the same model before; another attempt may come to it again."""
        found = (
            proof
            for kept, proof in reversed(self.memory)
            if (kept, proof.candidate) == (self.edits, candidate)
        )
        return next(found, None)

    def _remember(self, proof: Proof, seconds: float) -> Proof:
        spent = proof.outcome.seconds + seconds
        timed = replace(proof, outcome=changed(proof.outcome, seconds=spent))
        self.memory.append((self.edits, timed))
        return timed

    def _best(self, verified: Sequence[Proof]) -> Proof | None:
        """Who needs no more questions; else of the two that ended lowest the one that does so in a longer training."""
        settled = [each for each in verified if self._settles(each)]
        if settled or len(verified) < 2:
            return min(settled or verified, key=result, default=None)
        first, second = sorted(verified, key=result)[:2]
        if result(first)[0] != result(second)[0] or not self.trials.has_time():
            return first
        ends = [
            end(self._longer(self.base, self.edits + each.candidate.edits, each.candidate))
            for each in (first, second)
        ]
        return second if ends[1] < ends[0] or ends[0] != ends[0] else first

    def _keep(self, proof: Proof) -> None:
        """The best of a round becomes part of the repair, and what is treated next."""
        assert proof.report is not None  # it is verified, and so passed the second trace
        self.outcomes = [
            changed(each, kept=True) if each is proof.outcome else each for each in self.outcomes
        ]
        self.base = patient_of(treated(self.base, proof.candidate), proof.report)
        self.edits += proof.candidate.edits
        self.control = proof.losses

    def _confirmed(self) -> Trial | None:
        """The whole repair beside the untreated model once more. What does not hold is taken back; then None."""
        alone, repaired = self._longer(self.untreated, ()), self._longer(self.base, self.edits)
        trial = Trial(untreated=alone, treated=repaired, fresh=self.trials.fresh)
        found = compare(trial)
        if found.lower and self.yardstick.learned(repaired):
            return trial
        if thrown(repaired) and self.untreated.case.optimizer is not None:
            self.steadier = [with_rate(self._whole(), STEADIER)]
        why = found.why if not found.lower else f"{found.why}, yet {self.yardstick.told(repaired)}"
        self._take_back(trial, f"it did not hold in a longer trial with another seed: {why}")
        return None

    def _longer(self, patient: Patient, edits: Edits, candidate: Candidate | None = None) -> Losses:
        """A longer training with another seed of the patient, with the candidate if one is given; `edits` are all."""
        if known := self._known_longer(edits):
            return known
        case = patient.case if candidate is None else treated(patient, candidate)
        label = "training longer: repaired" if edits else "training longer: untreated"
        losses = self.trials.run(case, label, seed=CONFIRM_SEED, longer=CONFIRM_LONGER, finish=True)
        self.long.append((edits, losses))
        return losses

    def _known_longer(self, edits: Edits) -> Losses:
        return next((losses for known, losses in self.long if known == edits), ())

    def _whole(self) -> Candidate:
        """The repair as one candidate."""
        kept = [each for each in self.outcomes if each.kept]
        parts = [
            proof.candidate for each in kept for _, proof in self.memory if proof.outcome.edits == each.edits
        ]
        return reduce(together, [part for place, part in enumerate(parts) if part not in parts[:place]])

    def _take_back(self, trial: Trial, why: str) -> None:
        kept = [each for each in self.outcomes if each.kept]
        self.banned += [each.edits for each in kept]
        self.outcomes = [
            changed(each, kept=False, state="refuted", why=why, trial=trial) if each.kept else each
            for each in self.outcomes
        ]
        self.edits, self.base = (), self.untreated

    def _found(self, trial: Trial | None) -> Found:
        return Found(
            before=self.untreated,
            after=self.base,
            outcomes=tuple(self.outcomes),
            edits=self.edits,
            trial=trial,
            yardstick=self.yardstick,
        )
