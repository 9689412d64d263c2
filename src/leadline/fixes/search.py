"""The search for a repair: what touches least is tried first, what helps is kept, and then one looks again.

A round tries the candidates stage by stage (roots before consequences, a nearer reach before a farther one). In each
stage all are traced again, and those with nothing against them are trained; as soon as one ends lower and the model is
expected to train, the stage's best is kept. If no stage has one, the best of those that made it better is kept as part
of the repair. If there is none, those in doubt are trained too; and if that does not help, two causes may hide
each other: the most promising survivor is carried along, and the next round tries what could go with it. At last the
whole repair is trained beside the untreated model once more, longer and with another seed. If it does not end lower
again, the search begins anew without what it was made of, but first with the same at a smaller rate if the loss was
thrown about. What never held is never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from msgspec.structs import replace as changed

from leadline.case import Case
from leadline.fixes.candidates import Candidate, candidates, stages, steadier, together
from leadline.fixes.comparison import compare, end, thrown
from leadline.fixes.fix import Fix, Patient
from leadline.fixes.trial import Losses, OutOfTimeError, Trials
from leadline.fixes.verify import Proof, diagnose, look_again, patient_of, train_beside, treated
from leadline.records import Edit, Outcome, Trial, Verdict

MOST_ATTEMPTS = 4  # ours: repairs that may fail to hold before the search gives up
MOST_ROUNDS = 6  # ours: a bound on fixes that each help a little; a repair of more parts is another network
MOST_CARRIED = 2  # ours: causes that may hide each other
MOST_TRIALS = 3  # ours: among those that reach equally far
RANK: dict[Verdict, int] = {"trains": 0, "poor": 1, "undecided": 2, "fails": 3}
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
    control: Losses = ()
    """The training of `base`."""
    outcomes: list[Outcome] = field(default_factory=list)
    edits: Edits = ()
    steadier: list[Candidate] = field(default_factory=list)
    """Repairs that were thrown about, at a smaller rate; the next to be tried."""
    banned: list[Edits] = field(default_factory=list)
    """Edits of repairs that did not hold."""
    memory: list[tuple[Edits, Proof]] = field(default_factory=list)
    """Proofs, each with what had been kept before it."""
    alone: Losses = ()
    """The untreated model in the last, longer trial; trained when first needed."""

    def run(self) -> Found:
        try:
            first = self.trials.run(self.base.case, "training the untreated model")
        except OutOfTimeError:
            self.outcomes += [each.outcome(OUT_OF_TIME) for each in candidates(self.base, self.fixes)]
            return self._found(None)
        for _ in range(MOST_ATTEMPTS):
            self.control = first
            self._repair()
            if not self.edits or (held := self._confirmed()):
                break
        last = Trial(untreated=first, treated=(), fresh=self.trials.fresh)
        return self._found(held if self.edits else last)

    def _repair(self) -> None:
        """Rounds until the model is expected to train, or nothing helps any more."""
        carried: list[Proof] = []
        for _ in range(MOST_ROUNDS):
            if self.base.report.verdict == "trains":
                return
            proofs = self._round(carried[-1] if carried else None)
            if best := _best([each for each in proofs if each.verified]):
                self._keep(best)
                carried = []
            elif (next_ := _promising(proofs)) and len(carried) < MOST_CARRIED:
                carried.append(next_)
            else:
                return

    def _round(self, carried: Proof | None) -> list[Proof]:
        """Try all candidates, together with what is carried along; what came of each is written down."""
        proofs: list[Proof] = []
        todo = [*self._steadier(), *stages(self._candidates(carried))]
        while todo and not any(each.verified and _heals(each) for each in proofs):
            stage = [self._look(each) for each in todo.pop(0)]
            proofs += self._train(stage, [each for each in stage if each.open and not each.doubt])
        if not any(each.verified for each in proofs):
            proofs = self._train(proofs, [each for each in proofs if each.open and each.doubt])
        told = [each.outcome("another fix was verified before its turn") for stage in todo for each in stage]
        self.outcomes = _noted(self.outcomes, [*(each.outcome for each in proofs), *told])
        return proofs

    def _steadier(self) -> list[list[Candidate]]:
        """A stage of its own, once, and only at the beginning of an attempt: its edits are those of a whole repair."""
        found, self.steadier = self.steadier, []
        return [found] if found and not self.edits else []

    def _candidates(self, carried: Proof | None) -> list[Candidate]:
        if carried is None:
            found = candidates(self.base, self.fixes)
        else:
            beside = candidates(diagnose(treated(self.base, carried.candidate)), self.fixes)
            found = [together(carried.candidate, each) for each in beside]
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
        order = sorted(chosen, key=_prospect)
        trained = [self._trial(each, place) for place, each in enumerate(order)]
        return trained + [each for each in proofs if not any(each is other for other in chosen)]

    def _trial(self, proof: Proof, place: int) -> Proof:
        if place >= MOST_TRIALS:
            return _left(proof, f"{MOST_TRIALS} others that promise as much were trained before it")
        if not self.trials.has_time():
            return _left(proof, OUT_OF_TIME)
        began = self.trials.budget.clock()
        try:
            trained = train_beside(proof, self.base, self.trials, self.control)
        except OutOfTimeError:
            return _left(proof, OUT_OF_TIME)
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

    def _keep(self, proof: Proof) -> None:
        """The best of a round becomes part of the repair, and what is treated next."""
        assert proof.outcome.trial is not None  # it is verified,
        assert proof.report is not None  # and so passed the second trace
        self.outcomes = [
            changed(each, kept=True) if each is proof.outcome else each for each in self.outcomes
        ]
        self.base = patient_of(treated(self.base, proof.candidate), proof.report)
        self.edits += proof.candidate.edits
        self.control = proof.outcome.trial.treated

    def _confirmed(self) -> Trial | None:
        """The whole repair beside the untreated model once more. What does not hold is taken back; then None."""
        self.alone = self.alone or self._longer(self.untreated, "confirming: untreated")
        repaired = self._longer(self.base, "confirming: repaired")
        trial = Trial(untreated=self.alone, treated=repaired, fresh=self.trials.fresh)
        found = compare(trial)
        if not found.lower:
            if thrown(repaired) and self.untreated.case.optimizer is not None:
                self.steadier = [steadier(self._whole())]
            self._take_back(trial, f"it did not hold in a longer trial with another seed: {found.why}")
            return None
        return trial

    def _longer(self, patient: Patient, label: str) -> Losses:
        return self.trials.run(patient.case, label, seed=CONFIRM_SEED, longer=CONFIRM_LONGER, finish=True)

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
        )


def _noted(outcomes: Sequence[Outcome], new: Sequence[Outcome]) -> list[Outcome]:
    """Both; of a plan that the search came to before, what was found last, unless nothing was measured then."""
    fresh = [each for each in new if each.state != "not run" or not any(_same(each, old) for old in outcomes)]
    return [old for old in outcomes if not any(_same(old, each) for each in fresh)] + fresh


def _same(one: Outcome, other: Outcome) -> bool:
    return (one.fix, one.title, one.edits, one.kept) == (other.fix, other.title, other.edits, other.kept)


def _heals(proof: Proof) -> bool:
    return proof.outcome.verdict == "trains"


def _prospect(proof: Proof) -> tuple[int, tuple[bool, int], float]:
    """The better verdict first, then the nearer reach, then the larger promise."""
    candidate = proof.candidate
    return RANK[proof.outcome.verdict or "undecided"], candidate.stage, -candidate.promise


def _best(proofs: Sequence[Proof]) -> Proof | None:
    """The better verdict; among equals the one whose training ended lowest."""

    def key(proof: Proof) -> tuple[int, float]:
        trial = proof.outcome.trial
        return RANK[proof.outcome.verdict or "undecided"], end(trial.treated) if trial else 0.0

    return min(proofs, key=key, default=None)


def _promising(proofs: Sequence[Proof]) -> Proof | None:
    """Who removed its finding, but does not help alone."""
    found = (each for each in proofs if each.report is not None and not each.doubt)
    return min(found, key=_prospect, default=None)


def _left(proof: Proof, why: str) -> Proof:
    told = f"{proof.doubt or 'it passed the second trace'}; {why}"
    return replace(proof, outcome=changed(proof.outcome, state="not run", why=told))
