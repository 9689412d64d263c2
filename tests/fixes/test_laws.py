"""Laws that every fix obeys: a new fix is covered by its entry in tests/support/fix_examples.py."""

from __future__ import annotations

import copy
import dataclasses
import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import leadline
from leadline.case import Case
from leadline.checks._diagnosis import check_case
from leadline.errors import InputError
from leadline.fixes import all_fixes
from leadline.fixes._engine.edit_builders import scale_edit
from leadline.fixes._engine.edits import EditSession, apply_edits, code_of, temporary_edits
from leadline.fixes._engine.fix import Fix, FixContext, Plan, fix
from leadline.fixes._engine.verify import MAX_FUNCTION_DRIFT, function_drift, make_context
from leadline.records import Edit, Recipe
from leadline.tracer.inputs import call_model, unwrap
from tests.support.fix_examples import FIX_EXAMPLES, sick

FIXES = all_fixes()
HEADINGS = ["What it does", "Why it works", "What it costs", "When it does not help", "References"]
by_name = pytest.mark.parametrize("each", FIXES, ids=lambda each: each.name)
REHEARSAL_STEPS = 64
"""Enough for every finding of the examples but U530, which compares with Adam and takes 192 steps more."""
EDITING = [each for each in FIXES if FIX_EXAMPLES[each.name][1]]
"""All but those that only advise; a law about edits says nothing about these."""

by_editing = pytest.mark.parametrize("each", EDITING, ids=lambda each: each.name)
LONG = ("rescheme", "keel", "deep-norm", "peri-norm", "branch-scale", "pre-norm")
"""Fixes whose examples are deep stacks, which take long to trace."""

but_long = pytest.mark.parametrize(
    "each",
    [pytest.param(each, marks=pytest.mark.slow) if each.name in LONG else each for each in EDITING],
    ids=lambda each: each.name,
)


@cache
def proposals(name: str) -> tuple[Plan, ...]:
    """The plans of the fix for its own example."""
    chosen = next(each for each in FIXES if each.name == name)
    return tuple(chosen.propose(sick_context(name)))


def sick_context(name: str) -> FixContext:
    """The context of the fix's own example, checked once for all fixes that share it."""
    first = next(each for each, (build, _) in FIX_EXAMPLES.items() if build is FIX_EXAMPLES[name][0])
    return _checked(first)


@cache
def _checked(name: str) -> FixContext:
    return checked(name, sick(name))


def checked(name: str, case: Case) -> FixContext:
    """The context of the fix's example, or of a variant of it, rehearsed for as long as its findings need."""
    _, codes = FIX_EXAMPLES[name]
    return make_context(case, check_case(case, rehearse="U530" in codes or REHEARSAL_STEPS))


@cache
def treated(name: str, index: int) -> tuple[Case, FixContext]:
    """The example after that plan, and its new context."""
    case = sick(name)
    apply_edits(session_of(case), [plan for plan in proposals(name) if plan.edits][index].edits)
    return case, checked(name, case)


def edited(each: Fix) -> list[Plan]:
    """The plans of a fix that edits; there is one, or a law about them could not be broken."""
    plans = [plan for plan in proposals(each.name) if plan.edits]
    assert plans
    return plans


def session_of(case: Case) -> EditSession:
    return EditSession(model=unwrap(case.model), optimizer=case.optimizer)


def picture(case: Case) -> dict[str, Any]:
    """All of a case that edits can change: numbers, names, classes, hooks, flags and the groups of the optimizer."""
    assert case.optimizer is not None
    names = {id(p): name for name, p in case.model.named_parameters()}
    return {
        "tensors": {k: (v.dtype, v.clone()) for k, v in case.model.state_dict().items()},
        "modules": [(name, type(m).__name__, m.training) for name, m in case.model.named_modules()],
        "hooks": [
            (name, len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in case.model.named_modules()
        ],
        "flags": [
            (
                name,
                sorted(f"{k} {v}" if isinstance(v, float) else k for k, v in vars(m).items() if k[0] != "_"),
            )
            for name, m in case.model.named_modules()
        ],
        "trained": [(name, p.requires_grad) for name, p in case.model.named_parameters()],
        "groups": [
            {k: [names.get(id(p), "?") for p in v] if k == "params" else v for k, v in group.items()}
            for group in case.optimizer.param_groups
        ],
        "optimizer": type(case.optimizer).__name__,
        "steps": (
            len(case.optimizer._optimizer_step_pre_hooks),
            len(case.optimizer._optimizer_step_post_hooks),
        ),
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    found = [key for key in one if key != "tensors" and one[key] != other[key]]
    if one["tensors"].keys() != other["tensors"].keys():
        return [*found, "names"]
    return found + [
        name
        for name, (dtype, value) in one["tensors"].items()
        if dtype != other["tensors"][name][0] or not torch.equal(value, other["tensors"][name][1])
    ]


def outputs(case: Case) -> torch.Tensor:
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        found = call_model(case.model, case.inputs)
    assert isinstance(found, torch.Tensor)
    return found


def test_every_fix_has_an_example_and_every_example_a_fix():
    assert set(FIX_EXAMPLES) == {each.name for each in FIXES}


@by_name
def test_a_fix_its_function_and_its_file_have_one_name(each: Fix):
    name = each.name.replace("-", "_")
    assert (each.propose.__name__, each.propose.__module__) == (name, f"leadline.fixes.{name}")


def violations(each: Fix) -> list[str]:
    found = []
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name):
        found.append("name")
    if re.findall(r"^## (.+)$", each.doc, flags=re.MULTILINE) != HEADINGS:
        found.append("headings")
    if not each.summary.endswith(".") or len(each.summary) > 120:
        found.append("summary")
    if not each.answers:
        found.append("answers")
    return found


@by_name
def test_a_fix_has_a_page_of_the_usual_form(each: Fix):
    assert violations(each) == []


def test_a_fix_whose_metadata_is_malformed_is_caught():
    @fix(name="Bad Name", answers=(), reach="advice", since="0.1.0")
    def bad(context: FixContext):
        """no heading"""
        return []

    assert violations(bad) == ["name", "headings", "summary", "answers"]


@by_name
def test_a_fix_proposes_a_plan_for_its_example_and_describes_it(each: Fix):
    plans = proposals(each.name)
    assert plans
    for plan in plans:
        assert len(plan.title) > 15
        assert 0 <= plan.promise <= 1
        assert bool(plan.edits) == ((plan.reach or each.reach) != "advice")
        assert plan.edits or plan.code


@by_name
def test_proposing_changes_nothing(each: Fix):
    case = sick_context(each.name).case
    before, random = picture(case), torch.get_rng_state()
    list(each.propose(sick_context(each.name)))
    assert differences(before, picture(case)) == []
    assert torch.equal(random, torch.get_rng_state())


@by_editing
def test_undo_restores_everything_bit_for_bit(each: Fix):
    for plan in edited(each):
        case = sick(each.name)
        before = picture(case)
        with temporary_edits(session_of(case), plan.edits):
            assert differences(before, picture(case)) != []
        assert differences(before, picture(case)) == []


@by_editing
def test_a_plan_that_claims_to_keep_the_function_keeps_it(each: Fix):
    for plan in edited(each):
        if (plan.reach or each.reach) == "function":
            assert function_drift(sick(each.name), plan.edits) <= MAX_FUNCTION_DRIFT


def test_a_plan_that_does_not_keep_the_function_is_noticed():
    assert function_drift(sick("critical-init"), proposals("critical-init")[0].edits) > MAX_FUNCTION_DRIFT


def test_a_difference_is_noticed():
    case = sick("critical-init")
    before = picture(case)
    case.model[0][0].weight.data[0, 0] += 1
    case.model[0].register_forward_hook(lambda *_: None)
    assert differences(before, picture(case)) == ["hooks", "0.0.weight"]


@by_editing
def test_a_recipe_survives_json_and_replays_to_the_same_bits_on_a_copy(each: Fix):
    for plan in edited(each):
        recipe = Recipe(leadline="0", model="m", edits=plan.edits)
        again = Recipe.from_json(recipe.to_json())
        assert again == recipe
        first, second = sick(each.name), sick(each.name)
        apply_edits(session_of(first), plan.edits)
        apply_edits(session_of(second), again.edits)
        assert differences(picture(first), picture(second)) == []
        assert torch.equal(outputs(first), outputs(second))


@by_editing
def test_the_code_of_a_plan_does_the_same_as_its_edits(each: Fix):
    for plan in edited(each):
        treated, by_hand = sick(each.name), sick(each.name)
        apply_edits(session_of(treated), plan.edits)
        names = {"model": by_hand.model, "optimizer": by_hand.optimizer}
        exec(code_of(plan.edits), names)  # which may build another optimizer
        by_hand = dataclasses.replace(by_hand, optimizer=names["optimizer"])
        assert differences(picture(treated), picture(by_hand)) == []
        assert torch.equal(outputs(treated), outputs(by_hand))


@but_long
def test_a_fix_removes_what_it_was_tried_for(each: Fix):
    _, codes = FIX_EXAMPLES[each.name]
    before = {finding.code for finding in sick_context(each.name).report.findings}
    assert before & set(codes)
    left = [
        {finding.code for finding in treated(each.name, i)[1].report.findings}
        for i, _ in enumerate(edited(each))
    ]
    assert any((before - codes_left) & set(codes) for codes_left in left)


@by_editing
def test_a_treated_model_takes_a_step_and_its_copies_do_too(each: Fix):
    for plan in edited(each):
        case = sick(each.name)
        apply_edits(session_of(case), plan.edits)
        copy_case = copy.deepcopy(case.model)
        assert torch.equal(outputs(case), outputs(Case(copy_case, case.inputs)))
        assert case.loss is not None
        assert case.optimizer is not None
        loss = case.loss(call_model(case.model, case.inputs), case.targets)
        loss.backward()
        case.optimizer.step()
        reached = [p.grad is not None for g in case.optimizer.param_groups for p in g["params"]]
        assert any(reached)


@by_editing
def test_a_recipe_applied_twice_is_applied_once_and_one_undo_takes_it_back(each: Fix):
    for plan in edited(each):
        case = sick(each.name)
        recipe = Recipe(leadline="0", model=type(case.model).__qualname__, edits=plan.edits)
        before = picture(case)
        leadline.apply(case.model, recipe, case.optimizer)
        once = picture(case)
        leadline.apply(case.model, recipe.to_json(), case.optimizer)
        assert differences(once, picture(case)) == []
        leadline.undo(case.model)
        assert differences(before, picture(case)) == []


def sort_of(plan: Plan) -> frozenset[Any]:
    """What a plan does and where, its numbers aside: plans of one sort are alternatives."""
    return frozenset((edit.action, edit.where, _words(edit)) for edit in plan.edits)


def _words(edit: Edit) -> tuple[object, ...]:
    return tuple(item for item in edit.options.items() if isinstance(item[1], str | tuple))


def further(each: Fix, plan: Plan, case: Case, context: FixContext) -> list[str]:
    """What the same fix, if anything calls for it, would still change where the plan did: it should be nothing."""
    found: list[str] = []
    if not context.findings(each.answers):
        return found
    for second in each.propose(context):
        if sort_of(second) == sort_of(plan):
            once, session = picture(case), session_of(case)
            try:
                apply_edits(session, second.edits)
            except InputError:
                continue
            found += differences(once, picture(case))
            session.undo()
    return found


@but_long
def test_looked_for_again_a_fix_that_was_made_has_nothing_more_to_change(each: Fix):
    """Of alternatives that differ in a number the first: at another, the fix may well prefer what it preferred."""
    sorts = [sort_of(plan) for plan in edited(each)]
    for i, plan in enumerate(edited(each)):
        if sorts.index(sorts[i]) == i:
            assert further(each, plan, *treated(each.name, i)) == []


def test_a_fix_that_never_has_enough_is_noticed():
    @fix(name="halving", answers=("I",), reach="init", since="0.1.0")
    def halving(context: FixContext):
        yield Plan(title="half of it", edits=(scale_edit("3.weight", 0.5),))

    case, context = sick("scaled-head"), sick_context("scaled-head")
    (plan,) = halving.propose(context)
    apply_edits(session_of(case), plan.edits)
    assert further(halving, plan, case, context) == ["3.weight"]


def tied(case: Case) -> Case:
    """The same model with its last two matrices of one shape tied."""
    layers = [m for m in case.model.modules() if isinstance(m, nn.Linear)]
    pairs = [(a, b) for a in layers for b in layers if a is not b and a.weight.shape == b.weight.shape]
    if pairs:
        pairs[-1][0].weight = pairs[-1][1].weight
    return case


def narrow(case: Case) -> Case:
    hidden = [each for each in getattr(case.model, "layers", ()) if isinstance(each, nn.Module)]
    for module in (case.model, *hidden):  # layers in a Python list are not cast with their model
        module.to(torch.bfloat16)
    inputs = case.inputs.to(torch.bfloat16) if case.inputs.is_floating_point() else case.inputs
    loss = case.loss

    def wide(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(output.float(), targets)

    return Case(case.model, inputs, case.targets, wide, case.optimizer)


def frozen(case: Case) -> Case:
    for parameter in list(case.model.parameters())[: len(list(case.model.parameters())) // 2]:
        parameter.requires_grad = False
    return case


def compiled(case: Case) -> Case:
    model = torch.compile(case.model, backend="eager")
    return Case(model, case.inputs, case.targets, case.loss, case.optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("change", [tied, narrow, frozen, compiled], ids=lambda each: each.__name__)
@by_name
def test_on_an_unusual_model_a_fix_works_or_says_why_not(each: Fix, change: Any):
    case = change(sick(each.name))
    context = checked(each.name, case)
    try:
        plans = [plan for plan in each.propose(context) if plan.edits]
    except InputError:
        return
    aliases = {name: id(p) for name, p in case.model.named_parameters(remove_duplicate=False)}
    before = picture(case)
    for plan in plans:
        session = session_of(case)
        try:
            apply_edits(session, plan.edits)
        except InputError:
            continue
        assert outputs(case).isfinite().any()
        still = {name: id(p) for name, p in case.model.named_parameters(remove_duplicate=False)}
        assert {name: still[name] for name in aliases.keys() & still.keys()} == {
            name: aliases[name] for name in aliases.keys() & still.keys()
        }
        session.undo()
        assert differences(before, picture(case)) == []
