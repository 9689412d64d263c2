"""The search for a repair: the smallest change first; what helps is kept, and then the search goes on from there.

A round tries the candidates stage by stage (roots before consequences, smaller reach before larger), the most promising
of a stage first, a few at a time. All are traced again, and those without objections are trained for a short while; if
that decides nothing, the best of them is trained longer. When one ends lower, learns and is expected to train, the
learning rate that suits it is searched. If it then comes near a small reference network (see `reference`), the round is
over. If no stage has such a candidate, the best of those that improved the model is kept as part of the repair. If
there is none, those in doubt are trained too.

Candidates come from the findings first. If none of them helps, or there is no finding and the model still does not
learn, they are chosen by how its training fails, and then all parts of a plain recipe are tried at once (see
`failure`); of these, every part that is not needed is dropped again. At last, two causes may hide each other: the most
promising candidate is carried along, and the next round combines it with others.

A model that only its author can repair is not searched at all: where an op is undefined for its input, or all weights
are cut off from the loss, the page names the line and what to write instead. At the end the whole repair is trained
next to the untreated model once more, longer and with another seed. If it does not end lower again, or has not learned,
the search starts again without its edits, but first with the same repair at a smaller rate if the loss was unstable. A
repair that was never confirmed is never recommended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from msgspec.structs import replace as replace_fields

from leadline.case import Case
from leadline.fixes._engine.candidates import (
    Candidate,
    combine,
    find_advice,
    find_candidates,
    is_left_to_author,
    needs_author,
    stages,
)
from leadline.fixes._engine.comparison import (
    compare,
    final_loss,
    is_stable,
    is_unstable,
    judge_alone,
    learns,
)
from leadline.fixes._engine.failure import combine_all, find_candidates_by_failure, plain_recipes
from leadline.fixes._engine.fix import Fix, FixContext
from leadline.fixes._engine.proofs import (
    CONFIRMATION_LENGTH,
    CONFIRMATION_SEED,
    OUT_OF_TIME,
    BaseState,
    Edits,
    Prover,
    is_undecided,
    makes_trainable,
    merge_outcomes,
    most_promising,
    prospect_rank,
    result_rank,
    skip_training,
    trial_loss,
    with_rate,
)
from leadline.fixes._engine.reference import LearningCriterion, measure_criterion
from leadline.fixes._engine.trial import Losses, OutOfTimeError, Trials
from leadline.fixes._engine.verify import ADVICE, Proof, make_context, treated_case
from leadline.records import Outcome, Trial
from leadline.records.report import Report

# Heuristic: repairs that may fail their confirmation before the search gives up.
MAX_ATTEMPTS = 4

# Heuristic: a repair of more parts, each of which helps a little, would be another network.
MAX_ROUNDS = 8

# Heuristic: candidates carried along at once, for causes that hide each other.
MAX_CARRIED_FIXES = 2

# Heuristic: candidates of a stage that are traced and trained before the next ones.
BATCH_SIZE = 3

# Heuristic: candidates tried per stage; the promise of later ones is lower.
MAX_STAGE_CANDIDATES = 6

# Heuristic: a part of a plain recipe that adds less than this share of its progress is not needed.
MAX_MISSED_SHARE = 0.1

# Heuristic: a decade; with a third of the rate, the bundled example was unstable again.
STABLER_RATE_FACTOR = 0.1

CandidateSource = Callable[[Proof | None], list[Candidate]]
"""Candidates for the base, combined with the proof that is carried along, if there is one."""

VERIFIED_BEFORE = "another fix was verified before its turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The repair that a search found, and everything it tried."""

    before: FixContext
    after: FixContext
    """The repaired copy; the untreated model if nothing is recommended."""
    outcomes: tuple[Outcome, ...]
    edits: Edits
    trial: Trial | None
    """The confirmation; for a model that needs no repair, its own training alone."""
    criterion: LearningCriterion
    sought: bool
    """Whether the model needed a repair."""


def search(case: Case, fixes: Sequence[Fix], trials: Trials, report: Report | None = None) -> SearchResult:
    """Search for edits after which the model trains. The case itself is not changed; a `report` of it is used again."""
    untreated = BaseState(context=make_context(case, report), losses=())
    return Search(fixes=fixes, prover=Prover(trials=trials), untreated=untreated, base=untreated).run()


@dataclass(slots=True, kw_only=True)
class Search:
    """The state of one search."""

    fixes: Sequence[Fix]
    prover: Prover
    untreated: BaseState
    base: BaseState
    outcomes: list[Outcome] = field(default_factory=list)
    stabler: list[Candidate] = field(default_factory=list)
    """Repairs that were unstable, at a smaller rate; they are tried next."""
    sought: bool = True
    """Whether the model needs a repair; known after its own training."""
    banned: list[Edits] = field(default_factory=list)
    """Edits of repairs that were not confirmed."""

    @property
    def trials(self) -> Trials:
        return self.prover.trials

    @property
    def criterion(self) -> LearningCriterion:
        return self.prover.criterion

    def run(self) -> SearchResult:
        context = self.untreated.context
        if needs_author(context.profile) or is_left_to_author(context, self.fixes):
            self.outcomes += [each.outcome(ADVICE) for each in find_advice(context, self.fixes)]
            return self._result(None)
        try:
            losses = self.trials.run(context.case, "training the untreated model")
        except OutOfTimeError:
            self.outcomes += [each.outcome(OUT_OF_TIME) for each in find_candidates(context, self.fixes)]
            return self._result(None)
        self.prover.criterion = measure_criterion(context, self.trials, CONFIRMATION_LENGTH)
        alone = Trial(untreated=losses, treated=(), fresh=self.trials.fresh)
        self.untreated = BaseState(context=context, losses=losses)
        self.sought = self._needs_repair()
        if not self.sought:
            return self._result(alone)
        self._lengthen_trials()
        criterion = self.criterion
        for _ in range(MAX_ATTEMPTS):
            self.base = self.untreated
            self.prover.criterion = criterion
            self._repair()
            if not self.base.edits:
                return self._result(alone)
            confirmation = self._confirm()
            if confirmation is not None:
                return self._result(confirmation)
        return self._result(alone)

    def _needs_repair(self) -> bool:
        """Whether something was found, or the model does not learn even in a longer training."""
        if not _is_clean(self.untreated.context.report):
            return True
        if self.criterion.has_learned_enough(self.untreated.losses):
            return False
        if self.criterion.reference_failed or not self.trials.has_time():
            return False
        if self.untreated.context.case.optimizer is None and learns(self.untreated.losses):
            return False  # it learns, and how fast depends on a rate that is not the user's
        return not self._has_learned(self.untreated)

    def _lengthen_trials(self) -> None:
        """Make all trials longer if the untreated model learns enough in a short one and not in a longer one."""
        if not self.criterion.has_learned_enough(self.untreated.losses) or not self.trials.has_time():
            return
        if not self.criterion.has_learned_enough(self.prover.train_longer(self.untreated)):
            self.trials.length = CONFIRMATION_LENGTH
            context = self.untreated.context
            losses = self.trials.run(context.case, "training the untreated model", finish=True)
            self.untreated = BaseState(context=context, losses=losses)

    def _has_learned(self, base: BaseState) -> bool:
        """Whether it learns enough in its short training, or comes halfway in a longer, stable one."""
        if self.criterion.has_learned_enough(base.losses):
            return True
        longer = self.prover.train_longer(base)
        return self.criterion.is_halfway(longer) and is_stable(longer)

    def _repair(self) -> None:
        """Keep improvements until the model is expected to train and does, or nothing helps any more."""
        for _ in range(MAX_ROUNDS):
            is_clean = _is_clean(self.base.context.report)
            if is_clean and self.base.edits and self._has_learned(self.base):
                return
            best = self._improvement()
            if best is None:
                return
            self._keep(best)

    def _improvement(self) -> Proof | None:
        """The best verified change of the base: the likelier sources of candidates first, single fixes before several.

        A base that has learned already is not improved by guesses that no finding asks for.
        """
        context = self.base.context
        by_findings = not _is_clean(context.report)
        may_guess = not is_left_to_author(context, self.fixes, least="warning")
        sources = [self._answers] * by_findings + [self._guesses] * may_guess
        tried = []
        for place, find in enumerate(sources):
            proofs = self._round(find(None), later=len(sources) - place)
            if best := self._best([proof for proof in proofs if proof.verified]):
                return best
            tried.append(most_promising(proofs))
            if not self.trials.has_time() or (self.base.edits and self._has_learned(self.base)):
                return None
        plain = self._plain_recipe() if may_guess else None
        pairs = (self._pair(find, carried) for find, carried in zip(sources, tried, strict=True))
        return plain or next(filter(None, pairs), None)

    def _pair(self, find: CandidateSource, carried: Proof | None) -> Proof | None:
        """The best verified combination of the most promising candidate with others, or of that with further ones."""
        for _ in range(MAX_CARRIED_FIXES):
            if carried is None or not self.trials.has_time():
                break
            proofs = self._round(find(carried))
            if best := self._best([proof for proof in proofs if proof.verified]):
                return best
            carried = most_promising(proofs)
        return None

    def _plain_recipe(self) -> Proof | None:
        """All that a plain recipe does differently, without the parts that are not needed; None if it does not help."""
        recipes = [
            parts
            for parts in plain_recipes(self.base.context, self.fixes)
            if combine_all(parts).edits not in self.banned
        ]
        proofs = [(self._proof_of(parts), parts) for parts in recipes]
        verified = [pair for pair in proofs if pair[0].verified]
        if not verified:
            return None
        best, parts = min(verified, key=lambda pair: result_rank(pair[0]))
        for part in sorted(parts, key=lambda each: each.stage, reverse=True):
            fewer = tuple(each for each in parts if each is not part)
            proof = self._proof_of(fewer) if fewer else best
            if fewer and self._is_as_good(proof, best):
                best, parts = proof, fewer
        chosen = self._with_best_rate([best])
        self.outcomes = merge_outcomes(self.outcomes, [proof.outcome for proof in chosen])
        return self._best([proof for proof in chosen if proof.verified])

    def _proof_of(self, parts: Sequence[Candidate]) -> Proof:
        """The proof of several candidates at once, after a longer training if a short one decides nothing."""
        proof = self.prover.train(self.base, self.prover.trace(self.base, combine_all(parts)))
        if is_undecided(proof):
            proof = self.prover.extend(self.base, proof)
        self.outcomes = merge_outcomes(self.outcomes, [proof.outcome])
        return proof

    def _is_as_good(self, proof: Proof, best: Proof) -> bool:
        """Whether a proof with fewer edits is verified, and learns nearly as much as the best."""
        start = min(filter(math.isfinite, (best.losses[0], final_loss(self.base.losses))), default=0.0)
        missed = trial_loss(proof) - trial_loss(best)
        is_near = missed <= MAX_MISSED_SHARE * (start - trial_loss(best))
        is_settled = self.prover.is_settled(self.base, proof) or not self.prover.is_settled(self.base, best)
        return proof.verified and is_near and is_settled

    def _round(self, candidates: Sequence[Candidate], later: int = 0) -> list[Proof]:
        """Try all candidates, and record the outcome of each; `later` rounds are left as much time as stages."""
        proofs: list[Proof] = []
        pending = [*self._stabler_stage(), *stages(candidates)]
        while pending and not any(self._is_final(proof) for proof in proofs):
            until = self.trials.share(len(pending) + later)
            proofs += self._stage(pending.pop(0), until)
        if not any(proof.verified for proof in proofs):
            doubtful = sorted((proof for proof in proofs if proof.open and proof.doubt), key=prospect_rank)
            proofs = _without(proofs, doubtful) + self._train(doubtful)
        untried = [candidate.outcome(VERIFIED_BEFORE) for stage in pending for candidate in stage]
        self.outcomes = merge_outcomes(self.outcomes, [*(proof.outcome for proof in proofs), *untried])
        return proofs

    def _stage(self, stage: Sequence[Candidate], until: float) -> list[Proof]:
        """Try a few at a time, or one if trials were shortened, until one is final or the time is spent."""
        proofs: list[Proof] = []
        batch_size = 1 if self.trials.shortened else BATCH_SIZE
        for place in range(0, len(stage), batch_size):
            batch = stage[place : place + batch_size]
            why = self._stop_reason(place, proofs, until)
            if why:
                proofs += [Proof(candidate=each, outcome=each.outcome(why)) for each in batch]
                continue
            traced = [self.prover.trace(self.base, candidate) for candidate in batch]
            clear = sorted((proof for proof in traced if proof.open and not proof.doubt), key=prospect_rank)
            proofs += _without(traced, clear) + self._with_best_rate(self._train(clear))
        return proofs

    def _stop_reason(self, place: int, proofs: Sequence[Proof], until: float) -> str:
        """Why a stage ends before all of it was tried; "" if it goes on."""
        if any(self._is_final(proof) for proof in proofs):
            return VERIFIED_BEFORE
        if place >= MAX_STAGE_CANDIDATES:
            return f"{place} others that promise more were tried before it"
        if place and self.trials.budget.left < until:
            return "the time for fixes of the same reach was spent"
        return ""

    def _train(self, proofs: Sequence[Proof]) -> list[Proof]:
        """Train the first of these for a short while, and if that decides nothing, the best of them longer."""
        trained = [self.prover.train(self.base, proof) for proof in proofs[:BATCH_SIZE]]
        best = min((proof for proof in trained if is_undecided(proof)), key=trial_loss, default=None)
        if best is not None and not any(proof.verified for proof in trained):
            trained = [self.prover.extend(self.base, each) if each is best else each for each in trained]
        why = f"{BATCH_SIZE} others that promise as much were trained before it"
        return trained + [skip_training(proof, why) for proof in proofs[BATCH_SIZE:]]

    def _with_best_rate(self, proofs: list[Proof]) -> list[Proof]:
        """Add the best proof at the rate that suits it, unless it already comes near the reference.

        If none makes the model trainable, the one that ended lowest is used: it may lack only the right rate.
        """
        best = min((proof for proof in proofs if makes_trainable(proof)), key=result_rank, default=None)
        best = best or min((proof for proof in proofs if proof.lower), key=trial_loss, default=None)
        if best is None or self._is_final(best) or self.base.context.case.optimizer is None:
            return proofs
        return proofs + self.prover.prove_best_rate(self.base, best)

    def _is_final(self, proof: Proof) -> bool:
        """Whether the model trains with it and comes near the reference, so that nothing else has to be tried."""
        return makes_trainable(proof) and self.prover.is_settled(self.base, proof)

    def _stabler_stage(self) -> list[list[Candidate]]:
        """A stage tried once, at the beginning of an attempt: its candidates are whole repairs."""
        stabler, self.stabler = self.stabler, []
        return [stabler] if stabler and not self.base.edits else []

    def _answers(self, carried: Proof | None) -> list[Candidate]:
        """Candidates for the findings, combined with the carried one."""
        context, _ = self._state_with(carried)
        return self._combined(carried, find_candidates(context, self.fixes))

    def _guesses(self, carried: Proof | None) -> list[Candidate]:
        """Candidates by how training fails, combined with the carried one; none that ended no lower before."""
        context, losses = self._state_with(carried)
        candidates = self._combined(carried, find_candidates_by_failure(context, self.fixes, losses))
        failed = [
            proof.candidate.edits
            for edits, proof in self.prover.proofs
            if edits == self.base.edits and proof.outcome.trial is not None and not proof.lower
        ]
        return [each for each in candidates if each.edits not in failed]

    def _state_with(self, carried: Proof | None) -> tuple[FixContext, Losses]:
        """What fixes look at: the base, or the base with the carried candidate."""
        if carried is None:
            return self.base.context, self.base.losses
        return make_context(treated_case(self.base.context, carried.candidate)), carried.losses

    def _combined(self, carried: Proof | None, candidates: Sequence[Candidate]) -> list[Candidate]:
        if carried is not None:
            candidates = [
                combine(carried.candidate, each) for each in candidates if not _both_rates(carried, each)
            ]
        return [each for each in candidates if each.edits not in self.banned or not each.edits]

    def _best(self, verified: Sequence[Proof]) -> Proof | None:
        """The best final proof; else, of the two that ended lowest, the one that does so in a longer training."""
        final = [proof for proof in verified if self._is_final(proof)]
        if final or len(verified) < 2:
            return min(final or verified, key=result_rank, default=None)
        first, second = sorted(verified, key=result_rank)[:2]
        if result_rank(first)[0] != result_rank(second)[0] or not self.trials.has_time():
            return first
        one, other = (
            final_loss(self.prover.train_longer(self.base, proof.candidate)) for proof in (first, second)
        )
        return second if other < one or math.isnan(one) else first

    def _keep(self, proof: Proof) -> None:
        """Make the proof part of the repair; the next round starts from it."""
        assert proof.report is not None  # it is verified, and so passed the second trace
        self.outcomes = [
            replace_fields(each, kept=True) if each is proof.outcome else each for each in self.outcomes
        ]
        self.prover.criterion = proof.criterion or self.prover.criterion
        self.base = BaseState(
            context=make_context(treated_case(self.base.context, proof.candidate), proof.report),
            losses=proof.losses,
            edits=self.base.with_edits(proof.candidate),
        )

    def _confirm(self) -> Trial | None:
        """Train the whole repair and the untreated model once more. None if it fails; its edits are then dropped."""
        seeds = [CONFIRMATION_SEED]
        if any(each.kept and not each.answers for each in self.outcomes):
            seeds.append(CONFIRMATION_SEED + 1)  # what no finding asked for is more likely to be luck
        trials = [self._confirmation(seed) for seed in seeds]
        failed = [trial for trial in trials if self._refutation(trial)]
        if not failed:
            return trials[0]
        if is_unstable(failed[0].treated) and self.untreated.context.case.optimizer is not None:
            self.stabler = [with_rate(self._whole_repair(), STABLER_RATE_FACTOR)]
        why = f"a longer trial with another seed did not confirm it: {self._refutation(failed[0])}"
        self._drop_repair(failed[0], why)
        return None

    def _confirmation(self, seed: int) -> Trial:
        """A longer training of the whole repair next to the untreated model."""
        alone, repaired = (self.prover.train_longer(each, seed=seed) for each in (self.untreated, self.base))
        return Trial(untreated=alone, treated=repaired, fresh=self.trials.fresh)

    def _refutation(self, trial: Trial) -> str:
        """Why the repair does not pass this confirmation; "" if it does."""
        repaired = trial.treated
        changes_loss = any(each.kept and each.changes_loss for each in self.outcomes)
        comparison = judge_alone(repaired, self.criterion.constant) if changes_loss else compare(trial)
        if comparison.lower and self.criterion.has_learned(repaired):
            return ""
        if comparison.lower:
            return f"{comparison.why}, but {self.criterion.describe(repaired)}"
        return comparison.why

    def _whole_repair(self) -> Candidate:
        """The repair as one candidate."""
        kept = [outcome for outcome in self.outcomes if outcome.kept]
        proofs = self.prover.proofs
        parts = [proof.candidate for each in kept for _, proof in proofs if proof.outcome.edits == each.edits]
        return reduce(combine, [part for place, part in enumerate(parts) if part not in parts[:place]])

    def _drop_repair(self, trial: Trial, why: str) -> None:
        self.banned += [outcome.edits for outcome in self.outcomes if outcome.kept]
        self.outcomes = [
            replace_fields(each, kept=False, state="refuted", why=why, trial=trial) if each.kept else each
            for each in self.outcomes
        ]
        self.base = self.untreated

    def _result(self, trial: Trial | None) -> SearchResult:
        return SearchResult(
            before=self.untreated.context,
            after=self.base.context,
            outcomes=tuple(self.outcomes),
            edits=self.base.edits,
            trial=trial,
            criterion=self.criterion,
            sought=self.sought,
        )


def _is_clean(report: Report) -> bool:
    """Whether the model is expected to train, and nothing is worse than a note: parts that do not learn are."""
    return report.verdict == "trains" and all(each.severity == "info" for each in report.findings)


def _without(proofs: Sequence[Proof], removed: Sequence[Proof]) -> list[Proof]:
    """The proofs that are not among the removed ones, compared by identity."""
    return [proof for proof in proofs if not any(proof is other for other in removed)]


def _both_rates(carried: Proof, candidate: Candidate) -> bool:
    """Whether both only change the rate: together they are a third rate, which is tried anyway."""
    return all(edit.action == "rate" for edit in carried.candidate.edits + candidate.edits)
