"""Proofs of candidates, each made once: how they rank, which learning rate suits them, and longer trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from leadline.fixes._engine.candidates import Candidate, combine
from leadline.fixes._engine.comparison import MIN_RELATIVE_GAIN, final_loss, is_unstable, learns
from leadline.fixes._engine.edits import code_of
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.lookup import RATE_RATIO
from leadline.fixes._engine.reference import MIN_ENOUGH_SHARE, LearningCriterion
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.fixes._engine.verify import Proof, conclude, trace_again, train_treated, treated_case
from leadline.records import Edit, Outcome, Trial, Verdict
from leadline.report.snippet import put_together

# Derived: from best to worst; a model that cannot be judged may still fail.
VERDICT_RANK: dict[Verdict, int] = {"trains": 0, "poor": 1, "undecided": 2, "fails": 3}
OUT_OF_TIME = "the budget ended before its turn"

# Heuristic: rates tried in addition to the current one; three factors of 3 cover more than a decade.
MAX_RATE_TRIALS = 3

# Derived: any seed that differs from the 0 of the trials.
CONFIRMATION_SEED = 1
"""Seed of longer trainings: the batches come in another order than in trials, which have seed 0."""

# Heuristic: times as many steps as a trial; a repair that only delays a failure shows it within that.
CONFIRMATION_LENGTH = 3

Edits = tuple[Edit, ...]


# How proofs rank.


def makes_trainable(proof: Proof) -> bool:
    """Whether it is verified, and the model is expected to train with it."""
    return proof.verified and proof.outcome.verdict == "trains"


def prospect_rank(proof: Proof) -> tuple[int, tuple[bool, int], float]:
    """Sorting key before training: the better verdict, then the smaller reach, then the larger promise."""
    candidate = proof.candidate
    return VERDICT_RANK[proof.outcome.verdict or "undecided"], candidate.stage, -candidate.promise


def result_rank(proof: Proof) -> tuple[int, float]:
    """Sorting key after training: the better verdict, then the lower final loss."""
    return VERDICT_RANK[proof.outcome.verdict or "undecided"], trial_loss(proof)


def trial_loss(proof: Proof) -> float:
    """The final loss of its first trial; infinity if it was not trained, or diverged."""
    loss = final_loss(proof.losses)
    return loss if math.isfinite(loss) else math.inf


def is_undecided(proof: Proof) -> bool:
    """Whether it ended lower and is not verified, but its loss falls, or may: a longer training may decide."""
    return proof.is_open or (proof.lower and not proof.verified and learns(proof.losses))


def most_promising(proofs: Sequence[Proof]) -> Proof | None:
    """The proof to combine with others: the best of those that ended lower, or else removed a finding."""
    passed = [proof for proof in proofs if proof.report is not None]
    lower = [proof for proof in passed if proof.lower]
    if lower:
        return min(lower, key=trial_loss)
    return min((proof for proof in passed if not proof.doubt), key=prospect_rank, default=None)


def skip_training(proof: Proof, why: str) -> Proof:
    """The proof of a candidate that is not trained, with the reason."""
    reason = f"{proof.doubt or 'it passed the second trace'}; {why}"
    return replace(proof, outcome=replace_fields(proof.outcome, state="not run", why=reason))


def merge_outcomes(outcomes: Sequence[Outcome], new: Sequence[Outcome]) -> list[Outcome]:
    """All outcomes. A plan that was tried again keeps the last result, unless nothing was measured then."""
    added = [
        each
        for each in new
        if each.state != "not run" or not any(_is_same_plan(each, old) for old in outcomes)
    ]
    return [old for old in outcomes if not any(_is_same_plan(old, each) for each in added)] + added


def _is_same_plan(one: Outcome, other: Outcome) -> bool:
    return (one.fix, one.title, one.edits, one.kept) == (other.fix, other.title, other.edits, other.kept)


# Other learning rates for a candidate: a repaired model seldom needs the rate of the untreated one.


def with_rate(candidate: Candidate, factor: float) -> Candidate:
    """The candidate at another rate. A factor that it already has is multiplied."""
    if not candidate.edits or candidate.edits[-1].action != "rate":
        return combine(candidate, rate_candidate(factor))
    others, last = candidate.edits[:-1], candidate.edits[-1]
    current = last.options["factor"]
    assert isinstance(current, float | int)  # the action accepts nothing else
    product = _two_digits(current * factor)
    edit = Edit(action="rate", where=last.where, options={**last.options, "factor": product})
    code = put_together((code_of(others), code_of([edit]))) if others else code_of([edit])
    title = f"{candidate.title}, and that times {_two_digits(factor):g}"
    if candidate.edits == (last,) and not candidate.answers:
        title = rate_candidate(current * factor).title
    return replace(candidate, title=title, edits=(*others, edit), code=code)


def rate_candidate(factor: float, promise: float = 0.5) -> Candidate:
    """A change of the learning rate alone, which no finding asked for."""
    edit = Edit(action="rate", options={"factor": _two_digits(factor)})
    return Candidate(
        fix="learning-rate",
        title=f"the rate times {_two_digits(factor):g}",
        edits=(edit,),
        reach="recipe",
        answers=(),
        rooted=True,
        promise=promise,
        code=code_of([edit]),
    )


def find_best_rate(losses: Losses, train: Callable[[float], Losses]) -> float:
    """The factor on the rate that ends lowest: up as long as that helps, and down if up does not.

    `losses` are those at a factor of 1; `train` trains with another factor, at most `MAX_RATE_TRIALS` times.
    """
    best, factor, trials = losses, 1.0, 0
    for ratio in (RATE_RATIO, 1 / RATE_RATIO):
        while trials < MAX_RATE_TRIALS:
            trials += 1
            losses = train(factor * ratio)
            if not _is_better(losses, best):
                break
            best, factor = losses, factor * ratio
        if factor != 1:
            break
    return factor


def _is_better(losses: Losses, best: Losses) -> bool:
    if is_unstable(losses):
        return False
    loss, best_loss = final_loss(losses), final_loss(best)
    if math.isnan(best_loss):
        return not math.isnan(loss)
    return loss < best_loss - MIN_RELATIVE_GAIN * abs(best_loss)


def _two_digits(factor: float) -> float:
    return float(f"{factor:.2g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseState:
    """What fixes are tried on: the untreated model, or a copy with all edits that were kept so far."""

    context: FixContext
    losses: Losses
    """Losses of its own first trial."""
    edits: Edits = ()

    def with_edits(self, candidate: Candidate) -> Edits:
        return self.edits + candidate.edits


@dataclass(slots=True, kw_only=True)
class Prover:
    """Proves candidates during one search: each is traced once, trained once, and trained longer at most once."""

    trials: Trials
    criterion: LearningCriterion = field(default_factory=LearningCriterion)
    proofs: list[tuple[Edits, Proof]] = field(default_factory=list)
    """Each proof with the edits of its base."""
    longer: list[tuple[Edits, int, Losses]] = field(default_factory=list)
    """Longer trainings with another seed, each with all its edits and the seed."""

    def trace(self, base: BaseState, candidate: Candidate) -> Proof:
        """The proof after the second trace."""
        if not self.trials.has_time():
            return Proof(candidate=candidate, outcome=candidate.outcome(OUT_OF_TIME))
        if known := self._known_proof(base, candidate):
            return known
        self.trials.show(0, 0, f"tracing again with {candidate.fix}")
        start = self.trials.budget.clock()
        proof = trace_again(base.context, candidate)
        return self._remember(base, proof, start)

    def train(self, base: BaseState, proof: Proof) -> Proof:
        """The proof after the short trial, if it passed the second trace."""
        if not proof.open:
            return proof
        if not self.trials.has_time():
            return skip_training(proof, OUT_OF_TIME)
        start = self.trials.budget.clock()
        try:
            trained = train_treated(proof, base.context, self.trials, base.losses, self.criterion)
        except OutOfTimeError:
            return skip_training(proof, OUT_OF_TIME)
        return self._remember(base, trained, start)

    def extend(self, base: BaseState, proof: Proof) -> Proof:
        """The proof after a longer trial, for one that the short trial did not decide."""
        if not self.trials.has_time():
            return proof
        start = self.trials.budget.clock()
        control, losses = self.train_longer(base), self.train_longer(base, proof.candidate)
        trial = Trial(untreated=control, treated=losses, fresh=self.trials.fresh)
        return self._remember(base, conclude(proof, base.context, trial, self.criterion), start)

    def prove_best_rate(self, base: BaseState, proof: Proof) -> list[Proof]:
        """The proof at the rate that ends lowest in short trials, if it is another one; both are trained longer."""

        def train(factor: float) -> Losses:
            return self._try(base, with_rate(proof.candidate, factor))

        factor = self._with_margin(base, proof, find_best_rate(proof.losses, train))
        proofs = []
        if factor != 1:
            other = self.train(base, self.trace(base, with_rate(proof.candidate, factor)))
            proofs = [self.extend(base, other) if is_undecided(other) else other]
        for each in (proof, *proofs):
            if each.verified and not self.is_settled(base, each) and self.trials.has_time():
                self.train_longer(base, each.candidate)
        return proofs

    def _with_margin(self, base: BaseState, proof: Proof, factor: float) -> float:
        """The next lower rate if it learns nearly as much: the best rate of a short trial is often near divergence."""
        if factor <= 1 or not self.trials.has_time():
            return factor
        candidates = [
            with_rate(proof.candidate, each) if each > 1 else proof.candidate
            for each in (factor, factor / RATE_RATIO)
        ]
        higher, lower = (final_loss(self.train_longer(base, each)) for each in candidates)
        start = self.criterion.constant if self.criterion.constant is not None else proof.losses[0]
        is_enough = start - lower >= MIN_ENOUGH_SHARE * (start - higher)
        return factor / RATE_RATIO if is_enough or not math.isfinite(higher) else factor

    def is_settled(self, base: BaseState, proof: Proof) -> bool:
        """Whether it comes near the reference, in its longer training if there was one."""
        longer = self._known_longer(base.with_edits(proof.candidate))
        return (proof.criterion or self.criterion).has_learned_enough(longer or proof.losses)

    def train_longer(
        self, base: BaseState, candidate: Candidate | None = None, *, seed: int = CONFIRMATION_SEED
    ) -> Losses:
        """Train the base, or the base with a candidate, for longer and with another seed; never cut short."""
        edits = base.edits if candidate is None else base.with_edits(candidate)
        if known := self._known_longer(edits, seed):
            return known
        case = base.context.case if candidate is None else treated_case(base.context, candidate)
        label = f"training longer: {'repaired' if edits else 'untreated'}"
        losses = self.trials.run(case, label, seed=seed, longer=CONFIRMATION_LENGTH, finish=True)
        self.longer.append((edits, seed, losses))
        return losses

    def _try(self, base: BaseState, candidate: Candidate) -> Losses:
        """A trial without a second trace; empty if the edits cannot be made, the model raises, or time is up."""
        if not self.trials.has_time():
            return ()
        try:
            return self.trials.run(treated_case(base.context, candidate), f"training with {candidate.fix}")
        except Exception:  # for any reason: this rate is not the best one
            return ()

    def _known_proof(self, base: BaseState, candidate: Candidate) -> Proof | None:
        """The last proof of the same edits on the same base; a later attempt may need it again."""
        for edits, proof in reversed(self.proofs):
            if edits == base.edits and proof.candidate == candidate:
                return proof
        return None

    def _known_longer(self, edits: Edits, seed: int = CONFIRMATION_SEED) -> Losses:
        return next((losses for *known, losses in self.longer if known == [edits, seed]), ())

    def _remember(self, base: BaseState, proof: Proof, start: float) -> Proof:
        seconds = proof.outcome.seconds + self.trials.budget.clock() - start
        timed = replace(proof, outcome=replace_fields(proof.outcome, seconds=seconds))
        self.proofs.append((base.edits, timed))
        return timed
