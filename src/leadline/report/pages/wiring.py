"""The sections of a report about wiring: what outputs depend on, what the loss asks for, which tensors learn, parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.records import (
    Attention,
    Dependence,
    Ledger,
    LedgerRow,
    NetworkParts,
    Perturbation,
    Profile,
    Question,
    Router,
)
from leadline.report.page import Column, Details, Element, Fact, FactList, Section, Spark, Table, facts
from leadline.text import count, joined, number, plural, share

CHANGED = {
    "sample": "every second sample, or their order",
    "future": "later positions",
    "past": "earlier positions",
    "order": "order of earlier positions",
    "padding": "padded positions",
    "rest": "all positions but one",
}
"""What each perturbation changes, in words."""
# Heuristic: blocks that fit on a screen; the rest is folded.
LEDGER_BLOCKS_SHOWN = 12


def question_section(profile: Profile) -> Section:
    """What the network is asked: what its outputs depend on, and what the loss rewards."""
    title = "What the network is asked"
    dependence, question = profile.dependence, profile.question
    if dependence is None and question is None:
        return Section(key="question", title=title)
    answers = joined(*_answers(dependence, question))
    body: list[Element] = [_question_facts(question)] if question is not None else []
    if dependence is not None and dependence.perturbations:
        body.append(_perturbation_table(dependence.perturbations))
    return Section(
        key="question",
        title=title,
        link="Question",
        lead=f"Measured in {dependence.passes} forward passes on changed inputs."
        if dependence is not None
        else "",
        brief=(facts(Fact(label="Answers", value=answers, line="answers")),),
        verbose=tuple(body),
        body=tuple(body),
    )


def _answers(dependence: Dependence | None, question: Question | None) -> Iterator[str]:
    """What was asked, each with its answer in a few words."""
    probes = {} if dependence is None else {each.kind: each for each in dependence.perturbations}
    if "sample" in probes:
        yield "samples are mixed" if probes["sample"].forbidden else "samples stay apart"
    if question is not None and question.offset is not None:
        yield _targets(question.offset.offset)
    if "future" in probes:
        is_copy = question is not None and question.offset is not None and question.offset.offset == 0
        if probes["future"].forbidden:
            yield "answers are visible"
        elif not is_copy:
            yield "no answer is visible"
    if "padding" in probes:
        yield "padding leaks" if probes["padding"].forbidden else "padding is masked"
    if question is not None and question.toward_target is not None:
        yield "the loss rewards the targets" if question.toward_target > 0.5 else "the loss is negated"


def _targets(ahead: int) -> str:
    if ahead == 0:
        return "targets are the inputs themselves"
    return "targets are the next inputs" if ahead == 1 else f"targets are the inputs {ahead} positions ahead"


def _question_facts(question: Question) -> FactList:
    offset = question.offset
    rows = [
        ("Loss", question.loss or "several ops"),
        ("Predictions", " × ".join(str(size) for size in question.predictions)),
        ("Targets", " × ".join(str(size) for size in question.targets or ())),
        ("Class scores", question.scores or ""),
        ("Counted", "" if question.counted is None else f"{count(question.counted)} predictions"),
        ("Ignored", f"{count(question.ignored)} predictions" if question.ignored else ""),
        ("Most frequent target", "" if question.top_share is None else share(question.top_share)),
        ("Targets are", "" if offset is None else f"{offset.input} at {offset.offset} positions ahead"),
        ("Scale of targets", "" if question.target_scale is None else number(question.target_scale)),
        ("Scale of outputs", "" if question.output_scale is None else number(question.output_scale)),
    ]
    return facts(*(Fact(label=label, value=value) for label, value in rows))


def _perturbation_table(perturbations: Sequence[Perturbation]) -> Table:
    columns = (
        Column(title="changed"),
        Column(title="outputs that change", kind="spark", ends=("first", "last")),
        Column(title="result"),
    )
    rows = tuple(
        (f"{CHANGED[each.kind]} ({_span(each)})", Spark(values=each.moved, kind="linear"), _result(each))
        for each in perturbations
    )
    return Table(columns=columns, rows=rows)


def _span(probe: Perturbation) -> str:
    return str(probe.first) if probe.first == probe.last else f"{probe.first} to {probe.last}"


def _result(probe: Perturbation) -> str:
    if probe.forbidden:
        return f"{len(probe.forbidden)} outputs change that must not"
    changed = sum(move > 0 for move in probe.moved)
    return f"{changed} of {len(probe.moved)} outputs change"


# The ledger.


def ledger_section(ledger: Ledger | None) -> Section:
    """Which tensors learn, by block, and why the others do not."""
    title = "Which tensors learn"
    if ledger is None or not ledger.rows:
        return Section(key="ledger", title=title)
    trainable = [row for row in ledger.rows if row.trainable]
    learning = ledger.learning
    words = f"{len(learning)} of {plural(len(trainable), 'trainable tensor')}"
    frozen = len(ledger.rows) - len(trainable)
    table = _ledger_table(ledger.rows)
    shown: tuple[Element, ...] = (table,)
    if len(table.rows) > LEDGER_BLOCKS_SHOWN:
        shown = (Details(title=plural(len(table.rows), "block"), items=(table,)),)
    learn = joined(words, f"{frozen} frozen" if frozen else "")
    return Section(
        key="ledger",
        title=title,
        link="Ledger",
        lead=f"{words} learn.",
        brief=(facts(Fact(label="Learn", value=learn, line="learn")),)
        if len(learning) < len(ledger.rows)
        else (),
        verbose=shown,
        body=shown,
    )


def _ledger_table(rows: Sequence[LedgerRow]) -> Table:
    """One row per block: its tensors, how many of them learn, and why the others do not."""
    blocks: dict[str, list[LedgerRow]] = {}
    for row in rows:
        blocks.setdefault(row.block or row.name.rpartition(".")[0], []).append(row)
    columns = (
        Column(title="block", kind="name"),
        Column(title="tensors", kind="number"),
        Column(title="parameters", kind="number"),
        Column(title="learn", kind="number"),
        Column(title="why the others do not"),
    )
    return Table(columns=columns, rows=tuple(_block_row(name, own) for name, own in blocks.items()))


def _block_row(name: str, rows: Sequence[LedgerRow]) -> tuple[str, ...]:
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    return (
        name or "the model",
        str(len(rows)),
        count(sum(row.count for row in rows)),
        str(sum(not row.reason for row in rows)),
        "; ".join(reasons),
    )


# Attention, head by head.


def attention_section(profile: Profile) -> Section:
    """The largest logit of each head of each attention."""
    title = "Attention logits"
    attentions = [each for each in (profile.facts.attentions if profile.facts else ()) if each.head_logits]
    if not attentions:
        return Section(key="heads", title=title)
    columns = (
        Column(title="attention", kind="name"),
        Column(title="largest logit of each head", kind="spark", ends=("first", "last")),
        Column(title="largest", kind="number"),
        Column(title="in head", kind="number"),
    )
    table: Element = Table(columns=columns, rows=tuple(map(_attention_row, attentions)))
    if len(attentions) > LEDGER_BLOCKS_SHOWN:
        table = Details(title=plural(len(attentions), "attention"), items=(table,))
    lead = "Measured on the last queries of each sample; above about 100 the softmax is nearly an argmax."
    return Section(key="heads", title=title, link="Heads", lead=lead, verbose=(table,), body=(table,))


def _attention_row(attention: Attention) -> tuple[str | Spark, ...]:
    logits = attention.head_logits
    hottest = max(range(len(logits)), key=logits.__getitem__)
    return (
        attention.module or "the model",
        Spark(values=logits, kind="linear"),
        number(logits[hottest]),
        str(hottest),
    )


# Mixtures of experts, expert by expert.


def experts_section(parts: NetworkParts | None) -> Section:
    """The tokens and the gradient of each expert of each router."""
    title = "Experts"
    routers = parts.routers if parts is not None else ()
    if not routers:
        return Section(key="experts", title=title)
    columns = (
        Column(title="router", kind="name"),
        Column(title="tokens of each expert", kind="spark", ends=("first", "last")),
        Column(title="fewest", kind="number"),
        Column(title="most", kind="number"),
        Column(title="gradient of each expert", kind="spark", ends=("first", "last")),
        Column(title="smallest", kind="number"),
        Column(title="largest", kind="number"),
    )
    table: Element = Table(columns=columns, rows=tuple(map(_router_row, routers)))
    if len(routers) > LEDGER_BLOCKS_SHOWN:
        table = Details(title=plural(len(routers), "router"), items=(table,))
    lead = "Share of the tokens of the batch that chose each expert, and the norm of its gradient."
    return Section(key="experts", title=title, link="Experts", lead=lead, verbose=(table,), body=(table,))


def _router_row(router: Router) -> tuple[str | Spark, ...]:
    shares = tuple(each / max(router.tokens, 1) for each in router.load)
    gradients = router.expert_gradients
    return (
        router.weight,
        Spark(values=shares, kind="linear"),
        share(min(shares)),
        share(max(shares)),
        Spark(values=gradients, kind="linear") if gradients else "",
        number(min(gradients)) if gradients else "",
        number(max(gradients)) if gradients else "",
    )


# Parts that are known by their pattern.


def parts_section(parts: NetworkParts | None) -> Section:
    """Attentions, routers and other parts that the trace recognizes, each with what was measured there."""
    title = "Parts that were recognized"
    rows = tuple(_part_rows(parts)) if parts is not None else ()
    if not rows:
        return Section(key="parts", title=title)
    columns = (Column(title="part"), Column(title="where", kind="name"), Column(title="measured"))
    table: Element = Table(columns=columns, rows=rows)
    if len(rows) > LEDGER_BLOCKS_SHOWN:
        table = Details(title=plural(len(rows), "part"), items=(table,))
    lead = "Found by their ops and values, never by the names of classes."
    return Section(key="parts", title=title, link="Parts", lead=lead, verbose=(table,), body=(table,))


def _part_rows(parts: NetworkParts) -> Iterator[tuple[str, str, str]]:
    for attention in parts.attentions:
        factor = (
            "scaled" if attention.has_factor else "normalized" if attention.is_normalized else "no factor"
        )
        logits = f"variance {number(attention.variance)} of q · k over {plural(attention.width, 'feature')}"
        yield "attention", attention.site.module or "the model", f"{logits}, {factor}"
    for router in parts.routers:
        load = f"{router.used} of {router.experts} experts get a token, {router.chosen} per token"
        balance = "balanced" if router.is_balanced or router.is_corrected else "nothing balances the load"
        yield "router", router.site.module or "the model", f"{load}; {balance}"
    for mixing in parts.mixings:
        gains = f"gain {number(mixing.forward_gain)} forward, {number(mixing.backward_gain)} backward"
        differ = f"{share(mixing.spread)} of the signal differs between streams"
        yield (
            "streams",
            mixing.site.module or "the model",
            f"{mixing.streams} in {mixing.layers} layers; {gains}; {differ}",
        )
    for angle in parts.angles:
        steps = f"steps of {number(angle.spacing)} radians at {number(angle.largest)}"
        yield "angles", angle.site.module or "the model", f"{angle.dtype}: {steps}"
    for repeated in parts.repeated:
        yield "repeated module", repeated.paths[0], f"one object in {plural(len(repeated.paths), 'place')}"
    if parts.frozen is not None:
        held = f"{share(parts.frozen.share)} of all parameters, as random as an initializer leaves them"
        yield "frozen matrices", parts.frozen.names[0], f"{count(len(parts.frozen.names))}: {held}"
    for tensor in parts.unwritten or ():
        yield "memory", tensor.name, "nothing initializes it"
