"""Features of PyTorch that are hard to trace: in-place ops, checkpoints, compilation, hooks, parametrization."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from tests.support.traces import gaps_about, module, ops_in, output_of, parameter, trace
from tests.support.zoo import ZOO, Specimen, animals, energy
from tests.support.zoo.machinery import Checkpointed
from tests.support.zoo.plain import WIDTH, batch
from tests.support.zoo.plain_run import plain_run


def mean_square(x: Tensor) -> float:
    return x.detach().double().square().mean().item()


def test_the_gradient_at_a_value_is_that_of_the_value_before_it_was_written_in_place():
    case = ZOO["in-place"]()
    block = case.model[1]
    before = case.model[0](case.inputs).detach()
    hidden = block.lower(before)
    loss = energy(block.upper(F.relu(hidden)) + before)
    (gradient,) = torch.autograd.grad(loss, hidden)
    found = output_of(trace(case), "1.lower")
    assert found.forward.ms == pytest.approx(mean_square(hidden), rel=1e-5)
    assert found.forward.zero_share == 0
    assert found.backward.ms == pytest.approx(mean_square(gradient), rel=1e-5)


def test_an_in_place_op_makes_a_new_value():
    found = trace(ZOO["in-place"]())
    (rectified,) = [op for op in found.ops if op.module == "0.act"]
    (linear,) = ops_in(found, "0.lower")
    assert rectified.inputs[0] == linear.outputs[0] != rectified.outputs[0]
    assert found.values[rectified.outputs[0]].forward.zero_share > 0
    assert [op.name for op in ops_in(found, "0")] == ["add"]


def test_writing_a_slice_changes_the_value_of_the_whole_tensor():
    found = trace(ZOO["slice-assignment"]())
    (final,) = ops_in(found, "out")
    ancestors, todo = set(), list(final.inputs)
    while todo:
        op = found.values[todo.pop()].op
        if op is not None and op not in ancestors:
            ancestors.add(op)
            todo.extend(found.ops[op].inputs)
    assert {"low", "high"} <= {found.ops[op].module for op in ancestors}
    assert any("mul" in found.ops[op].name for op in ancestors)


@pytest.mark.parametrize(
    "animal",
    animals("dict-output", "dataclass-output", "namedtuple-output", "none-in-output", "lstm", "gru-packed"),
)
def test_gradients_are_seen_through_outputs_of_any_shape(animal: Specimen):
    found = trace(animal())
    layers = [op for op in found.ops if op.name in ("linear", "lstm", "gru")]
    assert layers
    assert all(found.values[op.outputs[0]].backward.ms > 0 for op in layers)


def test_both_states_of_an_lstm_are_values():
    found = trace(ZOO["lstm"]())
    (lstm,) = [op for op in found.ops if op.name == "lstm"]
    output, _, cell = lstm.outputs[:3]
    assert found.values[output].backward.ms > 0
    assert found.values[cell].backward.ms > 0


def test_keyword_inputs_keep_their_names():
    names = {value.name for value in trace(ZOO["keywords-only"]()).values if value.source == "input"}
    assert any("features" in name for name in names)
    assert any("mask" in name for name in names)


def test_a_module_called_four_times_has_four_calls_each_with_its_own_statistics():
    found = trace(ZOO["shared-module"]())
    shared = module(found, "layer")
    assert (shared.calls, shared.aliases) == (4, ("again",))
    gradients = {output_of(found, "layer", call).backward.ms for call in range(4)}
    assert len(gradients) == 4


def test_tied_weights_are_one_parameter_with_two_names():
    found = trace(ZOO["tied-weights"]())
    tied = parameter(found, "embed.weight")
    assert tied.aliases == ("head.weight",)
    assert sum("embed.weight" in op.params for op in found.ops) == 2


def test_a_module_that_is_never_called_is_listed():
    found = trace(ZOO["shared-module"]())
    assert module(found, "idle").calls == 0
    assert gaps_about(found, "idle")
    idle = parameter(found, "idle.weight")
    assert not idle.used
    assert idle.grad_norm is None
    assert gaps_about(found, "idle.weight")


def test_parameters_used_without_calling_their_module_are_seen():
    found = trace(ZOO["multihead-attention"]())
    hidden = parameter(found, "attention.out_proj.weight")
    assert hidden.used
    assert hidden.grad_norm > 0
    assert hidden.kind == "matrix"
    assert gaps_about(found, "attention.out_proj")


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x)


def test_a_module_whose_forward_is_called_directly_is_seen_at_its_ops_and_listed():
    found = trace(Case(Direct(), batch(), loss=energy))
    assert module(found, "layer").calls == 0
    assert parameter(found, "layer.weight").used
    assert "layer.weight" in found.ops[0].params
    assert gaps_about(found, "layer")


def test_an_encoder_in_eval_mode_is_seen_op_by_op_and_the_fast_path_is_mentioned():
    found = trace(ZOO["encoder-eval"]())
    assert not found.training
    assert sum(op.kind == "norm" for op in found.ops) == 4
    assert gaps_about(found, "fast path")
    assert gaps_about(found, "eval")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_blocks_have_the_gradients_of_the_same_blocks_without_checkpoints(
    use_reentrant: bool, monkeypatch
):

    def case() -> Case:
        torch.manual_seed(3)
        return Case(Checkpointed(use_reentrant=use_reentrant), batch(), loss=energy)

    torch.manual_seed(4)
    found = trace(case())
    monkeypatch.setattr("tests.support.zoo.machinery.checkpoint", lambda block, x, use_reentrant: block(x))
    torch.manual_seed(4)
    plain = trace(case())
    for path in ("first", "blocks.0.0", "blocks.0.1", "blocks.0.2", "blocks.1.0", "last"):
        one, other = output_of(found, path), output_of(plain, path)
        assert one.backward is not None, path
        assert one.backward.ms == pytest.approx(other.backward.ms, rel=1e-6), path
    assert module(found, "blocks.0").calls == 1
    assert not gaps_about(found, "checkpoint")


class Nested(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.tail = Checkpointed(use_reentrant=use_reentrant), nn.Linear(WIDTH, WIDTH)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(
            self.inner, x.requires_grad_(), use_reentrant=self.use_reentrant
        )
        return self.tail(inner)


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad=True:UserWarning"
)  # PyTorch's, inside the outer one
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_nested_checkpoints_are_seen_or_listed(use_reentrant: bool):
    found = trace(Case(Nested(use_reentrant=use_reentrant).eval(), batch(), loss=energy))
    inner = output_of(found, "inner.blocks.0.0")
    assert parameter(found, "inner.blocks.0.0.weight").grad_norm > 0
    assert inner.backward is not None or gaps_about(found, "checkpoint")


def test_a_reentrant_checkpoint_leaves_the_gradients_of_other_leaves_alone():
    case, outside = ZOO["checkpoint-reentrant"](), torch.ones((), requires_grad=True)
    case.inputs.requires_grad_()
    before = footprint(case)
    leadline.trace(case.model, case.inputs, loss=lambda out: outside * energy(out))
    assert outside.grad is None
    assert differences(before, footprint(case)) == []


@pytest.mark.parametrize("animal", animals("mlp", "checkpoint-reentrant"))
def test_gradients_are_those_of_this_batch_and_wake_no_accumulation_hook(animal: Specimen):
    clean, case = trace(animal()), animal()
    for each in case.model.parameters():
        each.grad = torch.full_like(each, 100.0)
        each.register_post_accumulate_grad_hook(
            lambda _: pytest.fail("the user's optimizer would have stepped")
        )
    assert [p.grad_norm for p in trace(case).parameters] == [p.grad_norm for p in clean.parameters]


@pytest.mark.parametrize("animal", animals("compiled-model", "compiled-submodule", "compiled-in-place"))
def test_compiled_models_yield_ops_under_the_users_names(animal: Specimen):
    case = animal()
    case.model(case.inputs)  # compiled already, without anyone watching
    found = trace(case)
    assert not [each.path for each in found.modules if "_orig_mod" in each.path]
    assert not [each.name for each in found.parameters if "_orig_mod" in each.name]
    linear = [op for op in found.ops if op.name == "linear"]
    assert len(linear) == sum(len(each.shape) == 2 for each in found.parameters)
    assert all(found.values[op.outputs[0]].backward.ms > 0 for op in linear)
    assert all(each.calls <= 1 for each in found.modules)


def test_wrappers_for_several_devices_are_taken_off():
    case = ZOO["mlp"]()
    names = [each.name for each in trace(case).parameters]
    assert [
        each.name for each in leadline.trace(nn.DataParallel(case.model), *astuple(case)).parameters
    ] == names


def astuple(case: Case) -> tuple[object, ...]:
    return case.inputs, case.targets, case.loss


def test_a_gradient_taken_inside_the_forward_pass_is_not_taken_for_the_losses():
    case = ZOO["gradient-penalty"]()
    x = case.inputs.clone().requires_grad_()
    hidden = case.model.critic[0](x)
    score = case.model.critic[2](case.model.critic[1](hidden))
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    (gradient,) = torch.autograd.grad(score.mean() + (slope.norm(dim=1) - 1).square().mean(), hidden)
    found = output_of(trace(case), "critic.0")
    assert found.backward.ms == pytest.approx(mean_square(gradient), rel=1e-4)


def test_frozen_layers_have_no_gradient_and_say_so():
    found = trace(ZOO["frozen-layers"]())
    frozen = parameter(found, "0.0.weight")
    assert not frozen.trainable
    assert frozen.grad_norm is None
    assert frozen.norm > 0
    assert output_of(found, "0.0").backward is None
    assert output_of(found, "1.0").backward.ms > 0
    assert gaps_about(found, "0.0.weight")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_a_trace_inside_a_block_without_gradients_still_has_gradients(mode: type):
    case = ZOO["mlp"]()
    with mode():
        found = leadline.trace(case.model, case.inputs * 1, case.targets, loss=case.loss)
    assert parameter(found, "0.0.weight").grad_norm > 0


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("weight-norm", ["0.parametrizations.weight.original0", "0.parametrizations.weight.original1"]),
        ("spectral-norm", ["0.parametrizations.weight.original"]),
        ("weight-norm-by-hook", ["0.weight_g", "0.weight_v"]),
        ("spectral-norm-by-hook", ["0.weight_orig"]),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_the_parts_of_a_parametrized_weight_are_used_and_have_gradients(name: str, parts: list[str]):
    found = trace(ZOO[name]())
    for part in parts:
        assert parameter(found, part).used
        assert parameter(found, part).grad_norm > 0
    (linear,) = [op for op in found.ops if op.name == "linear" and op.module == "0"]
    assert linear.kind == "weight"


def test_a_copy_made_after_a_trace_is_a_plain_copy():
    case = ZOO["conv-batch-norm"]()
    trace(case)
    twin = copy.deepcopy(case.model)
    torch.save(case.model, io.BytesIO())
    assert [list(vars(part)) for part in twin.modules()] == [
        list(vars(part)) for part in ZOO["conv-batch-norm"]().model.modules()
    ]


class Tracing(nn.Module):
    """A model that starts a trace of another while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        trace(ZOO["mlp"]())
        return self.layer(x)


def test_a_second_trace_while_one_runs_is_refused_and_both_clean_up():
    case = Case(Tracing(), batch(), loss=energy)
    before = footprint(case)
    with pytest.raises(leadline.InputError, match="one trace at a time"):
        trace(case)
    assert differences(before, footprint(case)) == []


def test_two_threads_trace_two_models_at_once():
    names = ["mlp", "encoder-pre-norm", "conv-batch-norm", "shared-module"]
    cases = {name: ZOO[name]() for name in names}
    cases["encoder-pre-norm"].model.eval()  # dropout would draw from a generator that all threads share
    alone = {name: trace(case).to_json() for name, case in cases.items()}
    before = {name: footprint(case) for name, case in cases.items()}
    together: dict[str, set[str]] = {name: set() for name in names}
    start = threading.Barrier(len(names))

    def work(name: str) -> None:
        start.wait(30.0)
        for _ in range(3):
            together[name].add(trace(cases[name]).to_json())

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert together == {name: {alone[name]} for name in names}
    assert {name: differences(before[name], footprint(cases[name])) for name in names} == {
        name: [] for name in names
    }


def test_the_users_own_hooks_run_and_stay():
    case, seen = ZOO["mlp"](), []
    case.model[0][0].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    case.model[0][0].weight.register_hook(lambda gradient: seen.append(gradient.shape))
    trace(case)
    assert seen[0] == (6, 8)
    case.model(case.inputs)
    assert seen[-1] == (6, 8)


def test_hostile_module_names_come_out_as_they_are():
    name = '<script>alert("x")</script>\n=HYPERLINK(1)\0'
    model = nn.Sequential()
    model.add_module(name, nn.Linear(WIDTH, WIDTH))
    found = trace(Case(model, batch(), loss=energy))
    assert leadline.Trace.from_json(found.to_json()).modules[1].path == name


class Unregistered(nn.Module):
    """Keeps layers in a plain list, where PyTorch does not find them: they never train."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(WIDTH, WIDTH)]
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden[0](x))


def test_trainable_tensors_that_the_model_does_not_register_are_listed():
    found = trace(Case(Unregistered(), batch(), loss=energy))
    assert gaps_about(found, "regist")
    assert ops_in(found, "head")


def test_a_gradient_hook_of_the_user_shows_in_the_gradient():
    case, plain = ZOO["mlp"](), plain_run(ZOO["mlp"]())
    case.model[1].weight.register_hook(lambda gradient: 10 * gradient)
    expected = 10 * plain.gradients["1.weight"].norm().item()
    assert parameter(trace(case), "1.weight").grad_norm == pytest.approx(expected, rel=1e-5)


def test_after_an_error_the_model_catches_ops_belong_to_the_right_module():
    found = trace(ZOO["recovers-from-an-error"]())
    (tanh,) = [op for op in found.ops if op.name == "tanh"]
    assert tanh.module == ""
    assert ops_in(found, "spare")
