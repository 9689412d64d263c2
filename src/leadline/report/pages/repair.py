"""The page of a repair: the report of the model as it was, with the fixes that were tried and their proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leadline.records import Outcome, State, Trial
from leadline.records.repair import RepairReport
from leadline.report.page import (
    Chart,
    Charts,
    Code,
    Column,
    Element,
    Fact,
    FactList,
    OutcomeItem,
    Outcomes,
    Page,
    Paragraph,
    Section,
    Series,
    Spark,
    Step,
    Table,
    Title,
    facts,
)
from leadline.report.pages.profiles import overlay, profiles_of
from leadline.report.pages.report import page_with, steps_to_take
from leadline.report.snippet import put_together
from leadline.report.verdict import TITLES, sentence
from leadline.text import joined, number, plural

REACH_NAMES: dict[str, str] = {
    "function": "keeps the function",
    "recipe": "changes the training",
    "init": "new initial weights",
    "architecture": "changes the model",
    "advice": "advice",
}
"""What a fix changes, by its reach."""
STATE_ORDER: tuple[State, ...] = ("verified", "refuted", "not run")


def repair_page(repair: RepairReport) -> Page:
    """The fixes, and in a browser also the whole report of the model as it was."""
    before, after = repair.before, repair.after
    charts = profiles_of(before.profile, before.findings, before.margins)
    if after is not None:
        both = overlay(before.profile, after.profile, ("before", "after"))
        charts = replace(both, hint=charts.hint)
    kept = [each for each in repair.outcomes if each.kept]
    steps = [step for each in kept for step in _kept_steps(each)] or steps_to_take(before)
    page = page_with(before, steps=steps, profiles=charts, more=(_fixes_section(repair),))
    titles, words = _headline(repair)
    return replace(
        page,
        titles=titles,
        sentence=words,
        note="",
        asked="",
        facts=_facts(repair, page.facts),
        sections=tuple(
            each if each.key == "fixes" else replace(each, brief=(), verbose=()) for each in page.sections
        ),
        record=before,
    )


def _headline(repair: RepairReport) -> tuple[tuple[Title, ...], str]:
    """What came of the repair, and the sentence that decided it."""
    result, before = repair.result, repair.verdict_before
    words = sentence(repair.after or repair.before)
    tone = repair.verdict_after
    if repair.after is not None:
        words = _change(repair)
    elif before == "trains" and not repair.ok:
        tone = "fails" if result == "not repaired" else "undecided"
        words = f"the check finds nothing, yet the model did not learn{_own_losses(repair)}"
    return (Title(words=result.upper(), tone=tone),), words


def _change(repair: RepairReport) -> str:
    """Loss and verdict before and after, in one clause each."""
    # its trial showed that the model does not learn, although the check found nothing
    is_flat = repair.verdict_before == "trains" and repair.trial is not None
    before = "DID NOT LEARN" if is_flat else TITLES[repair.verdict_before]
    verdicts = f"{before} → {TITLES[repair.verdict_after]}"
    trial = repair.trial
    if trial is None or not trial.treated or not trial.untreated:
        return verdicts
    losses = f"loss {number(trial.untreated[-1])} → {number(trial.treated[-1])}"
    return f"{verdicts}, {losses} after {plural(len(trial.treated), 'step')}"


def _own_losses(repair: RepairReport) -> str:
    """The first and last loss of the untreated model's own training."""
    losses = repair.trial.untreated if repair.trial is not None else ()
    if not losses:
        return ""
    return (
        f": {plural(len(losses), 'step')} took its loss from {number(losses[0])} to only {number(losses[-1])}"
    )


def _facts(repair: RepairReport, report_facts: FactList) -> FactList:
    """What the terminal shows of the search, before the facts of the model."""
    tried = sum(each.state != "not run" for each in repair.outcomes)
    kept = [each for each in repair.outcomes if each.kept]
    budget = "" if repair.budget is None else f" of {number(repair.budget)} s"
    search = joined(f"{tried} tried", f"{len(kept)} kept", f"{number(repair.seconds)} s{budget}")
    changes = joined(*dict.fromkeys(REACH_NAMES[each.reach] for each in kept))
    edits = joined(plural(len(repair.recipe.edits or repair.source), "edit"), changes) if kept else ""
    model = repair.before.profile.model
    return facts(
        Fact(label="Model", value=model, line="model", is_name=True),
        Fact(label="Trained with", value=repair.optimizer, line="model"),
        Fact(label="Search", value=search, line="search"),
        Fact(label="Repair", value=edits, line="repair"),
        *(
            replace(each, line="")
            for each in report_facts.rows
            if each.label not in ("Model", "Optimizer", "Confidence")
        ),
    )


def _kept_steps(outcome: Outcome) -> Iterator[Step]:
    """Changes of the user's own lines first, then what is left as code to add."""
    cost = f"{outcome.state}; {REACH_NAMES[outcome.reach]}"
    for change in outcome.source:
        yield Step(title=change.says, cost=cost, code=change.diff, why=outcome.why)
    if outcome.other_code or not outcome.source:
        code = outcome.other_code or outcome.code
        yield Step(title=outcome.title, cost=cost, code=code, why=outcome.why)


def _fixes_section(repair: RepairReport) -> Section:
    outcomes = Outcomes(items=tuple(map(_outcome_item, _ordered(repair))))
    notes: tuple[Element, ...] = tuple(Paragraph(words=each) for each in repair.notes)
    note_facts = facts(*(Fact(label="Note", value=each, line="note") for each in repair.notes))
    losses: tuple[Element, ...] = loss_elements(repair.trial) if repair.trial is not None else ()
    changes: list[Element] = [
        part for each in repair.source for part in (Paragraph(words=f"{each.says}:"), Code(text=each.diff))
    ]
    others = put_together(each.other_code for each in repair.outcomes if each.kept)
    text = others if changes else repair.code
    code: tuple[Element, ...] = (*changes, Code(text=text)) if text else tuple(changes)
    return Section(
        key="fixes",
        title="Loss with and without the fixes",
        link="Fixes tried",
        lead=f"{result_sentence(repair)} Each fix was trained next to the untreated model: same seeds, same batches, "
        "same number of steps.",
        brief=(outcomes, *losses, *code, note_facts),
        body=(Charts(items=tuple(_charts(repair))), outcomes, *notes),
    )


def result_sentence(repair: RepairReport) -> str:
    """What came of the repair."""
    if repair.after is None:
        tried = plural(sum(each.state != "not run" for each in repair.outcomes), "fix")
        return f"No fix is recommended: {tried} tried in {number(repair.seconds)} s."
    kept = plural(sum(each.kept for each in repair.outcomes), "fix")
    flat = " In the last trial its loss did not fall." if repair.learns is False else ""
    return f"After {kept}: {TITLES[repair.after.verdict]}, {sentence(repair.after)}.{flat}"


def _ordered(repair: RepairReport) -> list[Outcome]:
    """The kept fixes first, then verified, refuted and not run."""
    return sorted(repair.outcomes, key=lambda each: (not each.kept, STATE_ORDER.index(each.state)))


def _outcome_item(outcome: Outcome) -> OutcomeItem:
    measures = [
        f"{each.name:<30} {number(each.before):>10} → {number(each.after)}" for each in outcome.measures
    ]
    if outcome.drift is not None and outcome.state != "refuted":
        measures.append(f"outputs moved by {number(outcome.drift)} in double precision")
    return OutcomeItem(
        state=outcome.state,
        fix=outcome.fix,
        title=outcome.title,
        change=REACH_NAMES[outcome.reach],
        answers=", ".join(outcome.answers),
        why=outcome.why,
        kept=outcome.kept,
        is_advice=outcome.reach == "advice",
        resolved=", ".join(outcome.gone),
        introduced=", ".join(outcome.came),
        measures=tuple(measures),
        losses=None if outcome.trial is None else _loss_table(outcome.trial),
    )


# Both trainings: in characters for a terminal and Markdown, and as charts.


def loss_elements(trial: Trial) -> tuple[Element, ...]:
    """The losses of both trainings on one scale, and which batches they saw."""
    batches = "a new batch at each step" if trial.fresh else "the same batches again"
    return _loss_table(trial), Paragraph(words=f"{batches}; both on the same scale")


def _loss_table(trial: Trial) -> Table:
    steps = max(len(trial.untreated), len(trial.treated))
    columns = (
        Column(kind="label"),
        Column(title=f"loss over {plural(steps, 'step')}", kind="spark"),
        Column(title="first", kind="number"),
        Column(title="last", kind="number"),
    )
    pairs = (("untreated", trial.untreated, trial.treated), ("repaired", trial.treated, trial.untreated))
    rows = tuple(
        (label, Spark(values=losses, beside=other, kind="linear"), number(losses[0]), number(losses[-1]))
        for label, losses, other in pairs
        if losses
    )
    return Table(columns=columns, rows=rows)


def _charts(repair: RepairReport) -> Iterator[Chart]:
    """The whole repair first, then each fix that was trained."""
    if repair.trial is not None:
        whole = "the whole repair" if repair.trial.treated else "as it is"
        yield replace(_loss_chart(whole, repair.trial), prominent=True)
    for each in _ordered(repair):
        if each.trial is not None:
            state = f", {each.state}, kept" if each.kept else f", {each.state}"
            yield replace(_loss_chart(each.title, each.trial, state), notes=(each.why,) if each.why else ())


def _loss_chart(title: str, trial: Trial, state: str = "") -> Chart:
    series = (
        Series(label="with the fix", values=trial.treated),
        Series(label="without", values=trial.untreated, tone="second"),
    )
    return Chart(
        title=title,
        unit=f"loss by step{state}",
        series=tuple(each for each in series if each.values),
        interactive=True,
    )
