"""The search for a repair: the smallest change first; what helps is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

from msgspec.structs import replace as changed

from leadline.case import Case
from leadline.fixes._engine.candidates import Candidate, candidates, in_order, proposed, stages, together
from leadline.fixes._engine.comparison import compare, end, steady, thrown
from leadline.fixes._engine.fix import Fix, Patient
from leadline.fixes._engine.proofs import (
    CONFIRM_LONGER,
    OUT_OF_TIME,
    Base,
    Edits,
    Proving,
    heals,
    left_out,
    lowest,
    noted,
    promising,
    prospect,
    rate_candidate,
    result,
    undecided,
    with_rate,
)
from leadline.fixes._engine.reference import Yardstick, yardstick_of
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.fixes._engine.verify import Proof, diagnose, patient_of, treated
from leadline.records import Outcome, Trial

Symptom = Literal["breaks", "stays"]
SAYS: dict[Symptom, str] = {
    "breaks": "the loss breaks or is thrown about",
    "stays": "the loss stays near that of a constant output",
}
USUAL: dict[Symptom, tuple[str, ...]] = {
    "breaks": ("B202", "B205", "F101", "U501", "U502", "U503", "U504", "U509", "U521", "U523", "R401", "N70"),
    "stays": ("B201", "B205", "F102", "F104", "F106", "I301", "I302", "R401", "R402", "U505", "U509"),
}
"""Findings that are behind it as a rule: fixes that answer one of these are tried."""
RATES: dict[Symptom, tuple[float, ...]] = {
    "breaks": (0.1, 0.01),
    "stays": (10.0, 0.1, 0.01),
}
"""Factors on the rate, the likelier first: a loss that stays may have a rate that is too small, or far too large."""


def symptom_of(losses: Losses) -> Symptom:
    """How a training that did not get where it should went."""
    broke = not losses or not math.isfinite(losses[-1]) or thrown(losses)
    return "breaks" if broke else "stays"


def by_symptom(patient: Patient, fixes: Sequence[Fix], losses: Losses) -> list[Candidate]:
    """Plans for how the training went, in the order in which to try them. They answer no finding, and say so."""
    symptom = symptom_of(losses)
    return in_order([*_rates(patient, symptom), *_plans(patient, fixes, symptom)])


def _rates(patient: Patient, symptom: Symptom) -> Iterator[Candidate]:
    factors = RATES[symptom] if patient.case.optimizer is not None else ()
    for place, factor in enumerate(factors):
        yield rate_candidate(factor, promise=0.95 - place / 10)


def _plans(patient: Patient, fixes: Sequence[Fix], symptom: Symptom) -> Iterator[Candidate]:
    for fix in fixes:
        usual = any(code.startswith(fix.answers) for code in USUAL[symptom])
        if usual and fix.name != "learning-rate":
            for each in proposed(fix, patient, (), rooted=True):
                if each.edits and not each.why:
                    yield replace(each, answers=())


# The search for a repair: what touches least is tried first, what helps is kept, and then one looks again.
#
# A round tries the candidates stage by stage (roots before consequences, a nearer reach before a farther one), the most
# promising of a stage first, a few at a time. All are traced again, and those with nothing against them are
# trained for a
# short while; if that decides nothing, the best of them longer. As soon as one ends lower, learns and is expected to
# train, the learning rate that goes with it is looked for; and if it then comes near a small reference network
# (`yardstick`), the round is over. If no stage has such a one, the best of those that made it better is kept as part of
# the repair. If there is none, those in doubt are trained too; and if that does not help, two causes may hide each
# other: the most promising is carried along, and the next round tries what could go with it.
#
# Where no finding is left and the model still does not learn, whatever the check said of it, candidates are
# chosen by how
# its training goes wrong (`symptoms`). At last the whole repair is trained beside the untreated model once more, longer
# and with another seed. If it does not end lower again, or has not learned, the search begins anew without what it was
# made of, but first with the same at a smaller rate if the loss was thrown about. What never held is never recommended.

MOST_ATTEMPTS = 4  # ours: repairs that may fail to hold before the search gives up
MOST_ROUNDS = 8  # ours: a bound on fixes that each help a little; a repair of more parts is another network
MOST_CARRIED = 2  # ours: causes that may hide each other
AT_ONCE = 3  # ours: candidates of a stage that are looked at and trained before the next ones
MOST_OF_STAGE = 6  # ours: among those that reach equally far
VERIFIED_BEFORE = "another fix was verified before its turn"
STEADIER = 0.1  # ours: a decade; a third was tried on the bundled network, and is thrown about again


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    before: Patient
    after: Patient
    """The repaired copy; the untreated one again if nothing is recommended."""
    outcomes: tuple[Outcome, ...]
    edits: Edits
    trial: Trial | None
    """The last comparison; of a model that needed no repair, its own training alone."""
    yardstick: Yardstick


def search(case: Case, fixes: Sequence[Fix], trials: Trials) -> Found:
    """Look for edits after which the model trains. The case is left as it was."""
    patient = diagnose(case)
    untreated = Base(patient=patient, losses=())
    return Search(fixes=fixes, proving=Proving(trials=trials), untreated=untreated, base=untreated).run()


@dataclass(slots=True, kw_only=True)
class Search:
    """Lives while a repair is looked for."""

    fixes: Sequence[Fix]
    proving: Proving
    untreated: Base
    base: Base
    outcomes: list[Outcome] = field(default_factory=list)
    blind: bool = False
    """Findings are exhausted: candidates are chosen by how training goes wrong."""
    steadier: list[Candidate] = field(default_factory=list)
    """Repairs that were thrown about, at a smaller rate; the next to be tried."""
    banned: list[Edits] = field(default_factory=list)
    """Edits of repairs that did not hold."""

    @property
    def trials(self) -> Trials:
        return self.proving.trials

    @property
    def yardstick(self) -> Yardstick:
        return self.proving.yardstick

    def run(self) -> Found:
        patient = self.untreated.patient
        try:
            first = self.trials.run(patient.case, "training the untreated model")
        except OutOfTimeError:
            self.outcomes += [each.outcome(OUT_OF_TIME) for each in candidates(patient, self.fixes)]
            return self._found(None)
        self.proving.yardstick = yardstick_of(patient, self.trials, CONFIRM_LONGER)
        alone = Trial(untreated=first, treated=(), fresh=self.trials.fresh)
        self.untreated = Base(patient=patient, losses=first)
        if not self._needs_repair():
            return self._found(alone)
        self._until_it_shows()
        for _ in range(MOST_ATTEMPTS):
            self.base, self.blind = self.untreated, False
            self._repair()
            if not self.base.edits or (held := self._confirmed()):
                break
        return self._found(held if self.base.edits else alone)

    def _needs_repair(self) -> bool:
        """Something was found; or nothing, and still it does not learn, not even in a longer training."""
        if self.untreated.patient.report.verdict != "trains":
            return True
        if self.yardstick.enough(self.untreated.losses) or self.yardstick.idle or not self.trials.has_time():
            return False
        return not self._learned(self.untreated)

    def _until_it_shows(self) -> None:
        """Where the untreated training goes well in a short trial and not in a longer one, all trials become longer."""
        if not self.yardstick.enough(self.untreated.losses) or not self.trials.has_time():
            return
        if not self.yardstick.enough(self.proving.train_longer(self.untreated)):
            self.trials.length = CONFIRM_LONGER
            patient = self.untreated.patient
            losses = self.trials.run(patient.case, "training the untreated model", finish=True)
            self.untreated = Base(patient=patient, losses=losses)

    def _learned(self, base: Base) -> bool:
        """It learns enough in its short training, or comes half-way, and steadily, in a longer one."""
        if self.yardstick.enough(base.losses):
            return True
        longer = self.proving.train_longer(base)
        return self.yardstick.halfway(longer) and steady(longer)

    def _repair(self) -> None:
        """Rounds until the model is expected to train and does, or nothing helps any more."""
        carried: list[Proof] = []
        for _ in range(MOST_ROUNDS):
            expected = self.base.patient.report.verdict == "trains"
            if expected and self.base.edits and self._learned(self.base):
                return
            self.blind = self.blind or expected
            proofs = self._round(carried[-1] if carried else None)
            if best := self._best([each for each in proofs if each.verified]):
                self._keep(best)
                carried = []
            elif not self.trials.has_time() or (self.base.edits and self._learned(self.base)):
                return
            elif (next_ := promising(proofs)) and len(carried) < MOST_CARRIED:
                carried.append(next_)
            elif not self.blind:
                self.blind, carried = True, []
            else:
                return

    def _round(self, carried: Proof | None) -> list[Proof]:
        """Try all candidates, together with what is carried along; what came of each is written down."""
        proofs: list[Proof] = []
        todo = [*self._steadier(), *stages(self._candidates(carried))]
        while todo and not any(self._ends(each) for each in proofs):
            until = self.trials.share(len(todo))
            proofs += self._stage(todo.pop(0), until)
        if not any(each.verified for each in proofs):
            doubted = sorted((each for each in proofs if each.open and each.doubt), key=prospect)
            rest = [each for each in proofs if not any(each is other for other in doubted)]
            proofs = rest + self._trained(doubted)
        told = [each.outcome(VERIFIED_BEFORE) for stage in todo for each in stage]
        self.outcomes = noted(self.outcomes, [*(each.outcome for each in proofs), *told])
        return proofs

    def _stage(self, stage: Sequence[Candidate], until: float) -> list[Proof]:
        """A few at a time, or one where time is short, until one needs no further questions or the time is spent."""
        proofs: list[Proof] = []
        at_once = 1 if self.trials.hurried else AT_ONCE
        for place in range(0, len(stage), at_once):
            now = stage[place : place + at_once]
            if why := self._enough_of(place, proofs, until):
                proofs += [Proof(candidate=each, outcome=each.outcome(why)) for each in now]
                continue
            looked = [self.proving.look(self.base, each) for each in now]
            clear = sorted((each for each in looked if each.open and not each.doubt), key=prospect)
            rest = [each for each in looked if not any(each is other for other in clear)]
            proofs += rest + self._at_best_rate(self._trained(clear))
        return proofs

    def _enough_of(self, place: int, proofs: Sequence[Proof], until: float) -> str:
        """Why a stage is over before all of it was tried; "" if it is not."""
        if any(self._ends(each) for each in proofs):
            return VERIFIED_BEFORE
        if place >= MOST_OF_STAGE:
            return f"{place} others that promise more were tried before it"
        return (
            "the time for those that reach as far was spent"
            if place and self.trials.budget.left < until
            else ""
        )

    def _trained(self, order: Sequence[Proof]) -> list[Proof]:
        """Those that were looked at, trained: all for a short while, and if that decides nothing, the best longer."""
        told = f"{AT_ONCE} others that promise as much were trained before it"
        trained = [self.proving.train(self.base, each) for each in order[:AT_ONCE]]
        best = min((each for each in trained if undecided(each)), key=lowest, default=None)
        if best is not None and not any(each.verified for each in trained):
            trained = [self.proving.extend(self.base, each) if each is best else each for each in trained]
        return trained + [left_out(each, told) for each in order[AT_ONCE:]]

    def _at_best_rate(self, proofs: list[Proof]) -> list[Proof]:
        """With the best one at the rate that suits it, where it does not come near the reference as it is.

        If none heals, with the one that ended lowest: the rate may be all that it lacks.
        """
        best = min((each for each in proofs if heals(each)), key=result, default=None)
        best = best or min((each for each in proofs if each.lower), key=lowest, default=None)
        if best is None or self._ends(best) or self.base.patient.case.optimizer is None:
            return proofs
        return proofs + self.proving.at_best_rate(self.base, best)

    def _ends(self, proof: Proof) -> bool:
        """Nothing more has to be asked."""
        return heals(proof) and self.proving.settled(self.base, proof)

    def _steadier(self) -> list[list[Candidate]]:
        """A stage of its own, once, and only at the beginning of an attempt: its edits are those of a whole repair."""
        found, self.steadier = self.steadier, []
        return [found] if found and not self.base.edits else []

    def _candidates(self, carried: Proof | None) -> list[Candidate]:
        patient, losses = self.base.patient, self.base.losses
        if carried is not None:
            patient, losses = diagnose(treated(patient, carried.candidate)), carried.losses
        found = by_symptom(patient, self.fixes, losses) if self.blind else candidates(patient, self.fixes)
        if carried is not None:
            found = [together(carried.candidate, each) for each in found if not _both_rates(carried, each)]
        return [each for each in found if each.edits not in self.banned or not each.edits]

    def _best(self, verified: Sequence[Proof]) -> Proof | None:
        """Who needs no more questions; else of the two that ended lowest the one that does so in a longer training."""
        settled = [each for each in verified if self._ends(each)]
        if settled or len(verified) < 2:
            return min(settled or verified, key=result, default=None)
        first, second = sorted(verified, key=result)[:2]
        if result(first)[0] != result(second)[0] or not self.trials.has_time():
            return first
        one, other = (end(self.proving.train_longer(self.base, each.candidate)) for each in (first, second))
        return second if other < one or one != one else first

    def _keep(self, proof: Proof) -> None:
        """The best of a round becomes part of the repair, and what is treated next."""
        assert proof.report is not None  # it is verified, and so passed the second trace
        self.outcomes = [
            changed(each, kept=True) if each is proof.outcome else each for each in self.outcomes
        ]
        self.base = Base(
            patient=patient_of(treated(self.base.patient, proof.candidate), proof.report),
            losses=proof.losses,
            edits=self.base.with_edits(proof.candidate),
        )

    def _confirmed(self) -> Trial | None:
        """The whole repair beside the untreated model once more. What does not hold is taken back; then None."""
        alone, repaired = (self.proving.train_longer(each) for each in (self.untreated, self.base))
        trial = Trial(untreated=alone, treated=repaired, fresh=self.trials.fresh)
        found = compare(trial)
        if found.lower and self.yardstick.learned(repaired):
            return trial
        if thrown(repaired) and self.untreated.patient.case.optimizer is not None:
            self.steadier = [with_rate(self._whole(), STEADIER)]
        why = found.why if not found.lower else f"{found.why}, yet {self.yardstick.told(repaired)}"
        self._take_back(trial, f"it did not hold in a longer trial with another seed: {why}")
        return None

    def _whole(self) -> Candidate:
        """The repair as one candidate."""
        kept = [each for each in self.outcomes if each.kept]
        known = self.proving.proofs
        parts = [proof.candidate for each in kept for _, proof in known if proof.outcome.edits == each.edits]
        return reduce(together, [part for place, part in enumerate(parts) if part not in parts[:place]])

    def _take_back(self, trial: Trial, why: str) -> None:
        kept = [each for each in self.outcomes if each.kept]
        self.banned += [each.edits for each in kept]
        self.outcomes = [
            changed(each, kept=False, state="refuted", why=why, trial=trial) if each.kept else each
            for each in self.outcomes
        ]
        self.base = self.untreated

    def _found(self, trial: Trial | None) -> Found:
        return Found(
            before=self.untreated.patient,
            after=self.base.patient,
            outcomes=tuple(self.outcomes),
            edits=self.base.edits,
            trial=trial,
            yardstick=self.yardstick,
        )


def _both_rates(carried: Proof, candidate: Candidate) -> bool:
    """One rate after another is a third rate, which is tried anyway."""
    return all(edit.action == "rate" for edit in carried.candidate.edits + candidate.edits)
