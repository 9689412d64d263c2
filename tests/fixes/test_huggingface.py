"""Conversions of blocks that nobody here wrote: Hugging Face models, built offline from small configurations."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.fixes import all_fixes
from leadline.fixes._engine.edits import EditSession, apply_edits, code_of, temporary_edits
from leadline.fixes._engine.fix import Fix, FixContext, Plan
from leadline.fixes._engine.verify import make_context
from leadline.tracer.inputs import call_model

transformers = pytest.importorskip("transformers")

FIXES = {each.name: each for each in all_fixes()}
DEPTH, VOCABULARY, HEADS, WIDTH = 2, 29, 4, 32
HOT = 60.0  # what queries and keys are multiplied by, so that logits of weights of 0.02 freeze
slow = pytest.mark.slow
POST = ["bert", pytest.param("roberta", marks=slow)]
PRE = ["gpt2", pytest.param("llama", marks=slow), pytest.param("vit", marks=slow)]
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    t = transformers
    if name == "bert":
        return t.BertForMaskedLM(t.BertConfig(vocab_size=VOCABULARY, **SIZES, **QUIET))
    if name == "roberta":
        return t.RobertaForMaskedLM(t.RobertaConfig(**TOKENS, pad_token_id=VOCABULARY - 1, **SIZES, **QUIET))
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**TOKENS, num_key_value_heads=2, **SIZES))
    if name == "neox":
        return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**TOKENS, **SIZES | {"num_hidden_layers": 3}))
    if name == "vit":
        image = {"image_size": 16, "patch_size": 4, "num_channels": 1, "num_labels": VOCABULARY}
        return t.ViTForImageClassification(t.ViTConfig(**image, **SIZES, **QUIET))
    names = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": 64, "vocab_size": VOCABULARY}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return t.GPT2LMHeadModel(t.GPT2Config(**names, **quiet, bos_token_id=0, eos_token_id=1))


def loss_of(output: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.logits.flatten(0, -2), targets.flatten())


def case_of(name: str, *, hot: bool = False) -> Case:
    model = model_of(name).train()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY - 1, (8, 12), generator=generator)
    images = {"pixel_values": torch.randn(8, 1, 16, 16, generator=generator)}
    inputs = images if name == "vit" else {"input_ids": ids}
    if hot:
        for path, parameter in model.named_parameters():
            if path.endswith(("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")):
                parameter.data *= HOT
            elif path.endswith("c_attn.weight"):
                parameter.data[:, : 2 * WIDTH] *= HOT
            elif path.endswith("query_key_value.weight"):
                parameter.data *= HOT
    targets = ids[:, 0] if name == "vit" else ids.roll(-1, 1)
    return Case(model, inputs, targets, loss_of, torch.optim.Adam(model.parameters(), lr=1e-3))


def context_of(case: Case) -> FixContext:
    """What the fixes here read is in the trace; a rehearsal would take most of the time."""
    return make_context(case, check_case(case, rehearse=False))


@cache
def sick_context(name: str, *, hot: bool = False) -> FixContext:
    return context_of(case_of(name, hot=hot))


def plan_of(fix: str, name: str, *, hot: bool = False) -> Plan:
    return next(iter(FIXES[fix].propose(sick_context(name, hot=hot))))


def placements(context: FixContext) -> set[str]:
    return {block.residual.placement for block in context.profile.blocks if block.residual is not None}


def session_of(case: Case) -> EditSession:
    return EditSession(model=case.model, optimizer=case.optimizer)


def logits(case: Case) -> Tensor:
    with torch.no_grad():
        found: Tensor = call_model(case.model, case.inputs).logits
    return found


def check_conversion(fix: Fix, plan: Plan, name: str, *, hot: bool = False) -> FixContext:
    """Made, it is read again and there is no more to do; its code does the same; a step trains; undone, it is gone."""
    case, by_hand = case_of(name, hot=hot), case_of(name, hot=hot)
    before, keys = logits(case), list(case.model.state_dict())
    with temporary_edits(session_of(case), plan.edits):
        context = context_of(case)
        assert [again for again in fix.propose(context) if again.edits] == []
        exec(code_of(plan.edits), {"model": by_hand.model, "optimizer": by_hand.optimizer})
        assert torch.equal(logits(case), logits(by_hand))
        loss_of(call_model(by_hand.model, by_hand.inputs), by_hand.targets).backward()
        by_hand.optimizer.step()
        assert not torch.equal(logits(case), logits(by_hand))
    assert torch.equal(logits(case), before)
    assert list(case.model.state_dict()) == keys
    return context


@pytest.mark.parametrize("name", POST)
@pytest.mark.parametrize(
    ("fix", "placement"),
    [("deep-norm", "post"), ("pre-norm", "pre"), ("keel", "pre+post"), ("peri-norm", "sandwich")],
)
def test_a_post_norm_stack_is_converted(name, fix, placement):
    context = check_conversion(FIXES[fix], plan_of(fix, name), name)
    assert placements(context) == {placement}


def test_deep_norm_of_bert_scales_values_outputs_and_feed_forward_but_not_queries_and_keys():
    scaled = [edit.where for edit in plan_of("deep-norm", "bert").edits if edit.action == "scale"]
    assert len(scaled) == 4 * DEPTH
    assert not any("query" in where or "key" in where for where in scaled)


@pytest.mark.parametrize("name", PRE)
def test_a_pre_norm_stack_gets_norms_after_its_branches(name):
    context = check_conversion(FIXES["peri-norm"], plan_of("peri-norm", name), name)
    assert placements(context) == {"sandwich"}


@pytest.mark.parametrize("name", PRE)
def test_branches_are_scaled_by_one_over_their_number(name):
    plan = next(p for p in FIXES["branch-scale"].propose(sick_context(name)) if p.reach is None)
    context = check_conversion(FIXES["branch-scale"], plan, name)
    scales = [block.residual.branch_scale for block in context.profile.blocks if block.residual is not None]
    assert scales == pytest.approx([1 / (2 * DEPTH)] * 2 * DEPTH)


@pytest.mark.parametrize("name", [*POST, *PRE, pytest.param("neox", marks=slow)])
def test_hot_attention_gets_norms_for_queries_and_keys(name):
    assert min(seen.logit_var or 0 for seen in sick_context(name, hot=True).profile.facts.attentions) > 100
    context = check_conversion(FIXES["qk-norm"], plan_of("qk-norm", name, hot=True), name, hot=True)
    assert max(seen.logit_var or 0 for seen in context.profile.facts.attentions) < 2


def test_branches_side_by_side_are_left_to_their_author():
    """GPT-NeoX adds attention and feed-forward to the stream at once: no module puts out what is added."""
    plans = [
        plan for fix in ("peri-norm", "branch-scale") for plan in FIXES[fix].propose(sick_context("neox"))
    ]
    assert all(not plan.edits or plan.reach == "init" for plan in plans)
    assert any(plan.code for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_attention_written_out_is_normalized_where_its_projections_are_modules(name):
    case = case_of(name, hot=True)
    case.model.set_attn_implementation("eager")
    (plan,) = FIXES["qk-norm"].propose(context_of(case))
    if name == "gpt2":
        assert not plan.edits
        assert "RMSNorm" in plan.code
    else:
        apply_edits(session_of(case), plan.edits)
        assert max(seen.purity for seen in context_of(case).profile.facts.attentions) < 0.5


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=slow)])
def test_with_normalized_queries_and_keys_a_key_cache_gives_the_result_of_the_whole_text(name):
    case = case_of(name, hot=True)
    apply_edits(session_of(case), plan_of("qk-norm", name, hot=True).edits)
    model, ids = case.model.eval(), case.inputs["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        start = model(input_ids=ids[:, :7], use_cache=True)
        rest = model(input_ids=ids[:, 7:], past_key_values=start.past_key_values)
    torch.testing.assert_close(torch.cat([start.logits, rest.logits], 1), whole, rtol=1e-3, atol=1e-5)
