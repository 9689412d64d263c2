"""Proofs of candidate fixes, remembered: each is traced once and trained at most twice; and how they rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from leadline.fixes._engine.candidates import Candidate, together
from leadline.fixes._engine.comparison import LEAST, end, learns, thrown
from leadline.fixes._engine.edits import code_of
from leadline.fixes._engine.fix import Patient
from leadline.fixes._engine.reference import Yardstick
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.fixes._engine.verify import Proof, concluded, look_again, train_beside, treated
from leadline.records import Edit, Outcome, Trial, Verdict
from leadline.report.snippet import put_together

RANK: dict[Verdict, int] = {"trains": 0, "poor": 1, "undecided": 2, "fails": 3}


def heals(proof: Proof) -> bool:
    """It is verified, and with it the model is expected to train."""
    return proof.verified and proof.outcome.verdict == "trains"


def prospect(proof: Proof) -> tuple[int, tuple[bool, int], float]:
    """The better verdict first, then the nearer reach, then the larger promise."""
    candidate = proof.candidate
    return RANK[proof.outcome.verdict or "undecided"], candidate.stage, -candidate.promise


def result(proof: Proof) -> tuple[int, float]:
    """The better verdict first; among equals the one whose training ended lowest."""
    return RANK[proof.outcome.verdict or "undecided"], lowest(proof)


def lowest(proof: Proof) -> float:
    """Where its first trial ended; infinity if it was not trained, or broke."""
    found = end(proof.losses)
    return found if math.isfinite(found) else math.inf


def undecided(proof: Proof) -> bool:
    """It ended lower and is not verified, but its loss falls: a longer training may decide."""
    return proof.lower and not proof.verified and learns(proof.losses)


def promising(proofs: Sequence[Proof]) -> Proof | None:
    """Who to carry along: the best of those that ended lower, or else removed a finding."""
    passed = [each for each in proofs if each.report is not None]
    better = [each for each in passed if each.lower]
    if better:
        return min(better, key=lowest)
    return min((each for each in passed if not each.doubt), key=prospect, default=None)


def left_out(proof: Proof, why: str) -> Proof:
    """It was not trained, and why."""
    told = f"{proof.doubt or 'it passed the second trace'}; {why}"
    return replace(proof, outcome=changed(proof.outcome, state="not run", why=told))


def noted(outcomes: Sequence[Outcome], new: Sequence[Outcome]) -> list[Outcome]:
    """Both; of a plan that the search came to before, what was found last, unless nothing was measured then."""
    fresh = [each for each in new if each.state != "not run" or not any(_same(each, old) for old in outcomes)]
    return [old for old in outcomes if not any(_same(old, each) for each in fresh)] + fresh


def _same(one: Outcome, other: Outcome) -> bool:
    return (one.fix, one.title, one.edits, one.kept) == (other.fix, other.title, other.edits, other.kept)


# Other learning rates for a candidate: the rate that goes with a repair is seldom the one that the sick model had.

ASIDE = 3.0  # factor between one rate and the next; ours: half a decade, as in most searches by hand
MOST_RATES = 3  # ours: rates that are tried beside the one at hand


def with_rate(candidate: Candidate, factor: float) -> Candidate:
    """The same at another rate; a factor that it has already is multiplied, and no second one added."""
    if not candidate.edits or candidate.edits[-1].action != "rate":
        return together(candidate, rate_candidate(factor))
    kept, last = candidate.edits[:-1], candidate.edits[-1]
    known = last.options["factor"]
    assert isinstance(known, float | int)  # what the action takes
    edit = Edit(action="rate", where=last.where, options={**last.options, "factor": _short(known * factor)})
    code = put_together((code_of(kept), code_of([edit]))) if kept else code_of([edit])
    title = f"{candidate.title}, and that times {_short(factor):g}"
    if candidate.edits == (last,) and not candidate.answers:
        title = rate_candidate(known * factor).title
    return replace(candidate, title=title, edits=(*kept, edit), code=code)


def rate_candidate(factor: float, promise: float = 0.5) -> Candidate:
    """Nothing but another rate, called for by no finding."""
    edit = Edit(action="rate", options={"factor": _short(factor)})
    return Candidate(
        fix="learning-rate",
        title=f"the rate times {_short(factor):g}",
        edits=(edit,),
        reach="recipe",
        answers=(),
        rooted=True,
        promise=promise,
        code=code_of([edit]),
    )


def best_rate(losses: Losses, train: Callable[[float], Losses]) -> float:
    """The factor on the rate that ends lowest: up as long as that helps, and down if up does not.

    `losses` are those at a factor of 1, `train` trains with another; at most `MOST_RATES` are asked for.
    """
    best, factor, asked = losses, 1.0, 0
    for direction in (ASIDE, 1 / ASIDE):
        while asked < MOST_RATES:
            asked += 1
            tried = train(factor * direction)
            if not _better(tried, best):
                break
            best, factor = tried, factor * direction
        if factor != 1:
            break
    return factor


def _better(one: Losses, other: Losses) -> bool:
    if thrown(one):
        return False
    lowest, known = end(one), end(other)
    return lowest < known - LEAST * abs(known) or (lowest == lowest and known != known)


def _short(factor: float) -> float:
    return float(f"{factor:.2g}")


# Proofs of candidates on a base, remembered: each is looked at once, trained once, and trained longer at most once.

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
