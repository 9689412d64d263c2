"""What a watch records is what a plain loop would have computed, under everything people use."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import leadline
from leadline.checks._history import ABSENT, FROZEN, NOT_OPTIMIZED
from leadline.monitor.norms import Norms, one_norm, read_one, total
from leadline.monitor.parameters import build_parameter_table
from leadline.monitor.sampler import sampling_obstacle
from leadline.monitor.step_losses import to_number
from leadline.monitor.watch import Watch

CLOSE = 1e-5  # relative: float32 sums of a few hundred terms err by about 1e-7


def stack(layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(6, 6), nn.Tanh())), nn.Linear(6, 2))


def batch() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 6)


def scalars(w: Watch, name: str) -> list[float]:
    return w.history.scalars(name).values


def rows(w: Watch, name: str) -> list[list[float]]:
    return [list(row) for row in w.history.recent(name).rows]


def norm_of(tensors: list[Tensor]) -> float:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors]).norm().item()


def test_gradients_updates_and_weights_have_the_norms_that_a_plain_loop_finds():
    model, x = stack(), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=1) as w:
        loss = model(x).square().mean()
        w.loss(loss).backward()
        before = [each.detach().clone() for each in model.parameters()]
        grads = [each.grad.clone() for each in model.parameters()]
        optimizer.step()
    after = [each.detach() for each in model.parameters()]
    moved = [old - new for old, new in zip(before, after, strict=True)]
    for name, tensors in (("grad_norm", grads), ("update_norm", moved), ("weight_norm", after)):
        assert rows(w, name)[0] == pytest.approx([each.norm().item() for each in tensors], rel=CLOSE)
        assert scalars(w, name) == pytest.approx([norm_of(tensors)], rel=CLOSE)
    assert scalars(w, "loss") == [loss.item()]
    assert scalars(w, "lr") == [0.1]


def test_accumulated_micro_batches_are_measured_once_all_of_them_are_there():
    model, x = stack(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=1) as w:
        for part in x.split(1):
            w.loss(model(part).square().mean()).backward()
        optimizer.step()
    expected = norm_of([each.grad for each in model.parameters()])
    assert scalars(w, "grad_norm") == pytest.approx([expected], rel=CLOSE)
    assert w.step == 1


def test_unscaled_gradients_are_recorded_with_a_grad_scaler():
    found = {}
    for scaled in (False, True):
        model, x = stack(), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        with leadline.watch(model, optimizer, every=1) as w:
            scaler.scale(w.loss(model(x).square().mean())).backward()
            scaler.step(optimizer)
            scaler.update()
        found[scaled] = rows(w, "grad_norm")[0]
        assert scalars(w, "loss_scale") == ([1024.0] if scaled else [])
        backward = rows(w, "backward_ms")[0]
        found["backward", scaled] = [each for each in backward if each >= 0]
    assert found[True] == pytest.approx(found[False], rel=CLOSE)
    assert found["backward", True] == pytest.approx(found["backward", False], rel=CLOSE)


def test_gradients_of_a_fused_optimizer_are_recorded_unscaled():
    found = []
    for scaled in (False, True):
        model, x = stack(), batch()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
        with leadline.watch(model, optimizer, every=1) as w:
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(scalars(w, "grad_norm"))
    assert found[1] == pytest.approx(found[0], rel=CLOSE)


def test_steps_that_a_grad_scaler_skips_are_events():
    model, x = stack(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with leadline.watch(model, optimizer, every=1) as w:
        for spoilt in (False, True, True, False):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean() * (math.inf if spoilt else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert w.step == 2
    assert [each.data["steps"] for each in w.events if each.kind == "skipped step"] == [2]


def test_the_loss_and_the_first_gradient_of_a_closure_are_recorded():
    model, x = stack(), batch()
    twin = copy.deepcopy(model)
    first = twin(x).square().mean()
    first.backward()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with leadline.watch(model, optimizer, every=1) as w:
        optimizer.step(closure)
    assert scalars(w, "loss") == [first.item()]
    assert scalars(w, "grad_norm") == pytest.approx([norm_of([p.grad for p in twin.parameters()])], rel=CLOSE)
    assert len(rows(w, "forward_ms")) == 1


def test_two_optimizers_make_one_step_when_both_have_stepped():
    model, x = stack(), batch()
    half = list(model.parameters())
    optimizers = [torch.optim.SGD(half[:4], lr=0.1), torch.optim.AdamW(half[4:], lr=0.01)]
    with leadline.watch(model, optimizers, every=1) as w:
        for _ in range(3):
            model(x).square().mean().backward()
            grads = [each.grad.clone() for each in half]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert w.step == 3
    assert scalars(w, "grad_norm")[-1] == pytest.approx(norm_of(grads), rel=CLOSE)


def test_an_optimizer_that_steps_more_often_than_the_other_defines_the_steps():
    model, x = stack(), batch()
    half = list(model.parameters())
    critic, actor = torch.optim.SGD(half[:4], lr=0.1), torch.optim.SGD(half[4:], lr=0.1)
    with leadline.watch(model, [critic, actor], every=1) as w:
        for turn in range(6):
            model(x).square().mean().backward()
            critic.step()
            if turn % 3 == 2:
                actor.step()
    assert len(scalars(w, "grad_norm")) == 6


def test_optimizers_that_step_inside_the_backward_pass_are_recorded():
    model, x = stack(), batch()
    twin = copy.deepcopy(model)
    twin(x).square().mean().backward()
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    with leadline.watch(model, list(optimizers.values()), every=1) as w:
        for _ in range(2):
            model(x).square().mean().backward()
    assert w.step == 2
    assert rows(w, "grad_norm")[0] == pytest.approx(
        [p.grad.norm().item() for p in twin.parameters()], rel=CLOSE
    )
    assert len(rows(w, "forward_ms")) == 2


def test_a_group_that_is_added_later_is_recorded_from_then_on():
    model, x = stack(), batch()
    half = list(model.parameters())
    optimizer = torch.optim.SGD(half[:4], lr=0.1)
    with leadline.watch(model, optimizer, every=1) as w:
        for turn in range(2):
            model(x).square().mean().backward()
            if turn == 1:
                optimizer.add_param_group({"params": half[4:]})
            optimizer.step()
    before, after = rows(w, "grad_norm")
    assert before[4:] == [NOT_OPTIMIZED] * (len(half) - 4)
    assert all(each > 0 for each in after)


def test_missing_and_frozen_gradients_differ_from_zero_and_unfreezing_is_noticed():
    model, x = stack(), batch()
    spare = nn.Linear(2, 2)
    whole = nn.ModuleDict({"body": model, "spare": spare})
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    with leadline.watch(whole, optimizer, every=1) as w:
        for turn in range(2):
            if turn == 1:
                model[0].requires_grad_(requires_grad=True)
            model(x).square().mean().backward()
            optimizer.step()
    frozen, thawed = rows(w, "grad_norm")
    assert frozen[:2] == [FROZEN] * 2
    assert min(thawed[:2]) > 0
    assert frozen[-2:] == thawed[-2:] == [ABSENT] * 2


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
def test_checkpointed_layers_are_sampled(reentrant: bool):
    class Saver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = stack(), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.body, x, use_reentrant=reentrant))

    model, x = Saver(), batch().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=1) as w:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert w.trouble == ""
    assert len(rows(w, "forward_ms")) == 2
    assert scalars(w, "grad_norm")[-1] == pytest.approx(
        norm_of([p.grad for p in model.parameters()]), rel=CLOSE
    )


EXTREMES = {
    "tiny": torch.full((100,), 1e-30),
    "huge": torch.full((100,), 1e25),
    "half": torch.full((100,), 300.0, dtype=torch.float16),
    "brain": torch.full((1024,), 1.0, dtype=torch.bfloat16),
    "complex": torch.full((3,), 3 + 4j),
    "sparse": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 4.0], (5,), check_invariants=True),
    "large": torch.full((2**20 + 17,), 0.1),
    "empty": torch.zeros(0),
    "zero": torch.zeros(7),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_a_norm_is_right_at_the_extremes(name: str):
    tensor = EXTREMES[name]
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    expected = dense.to(torch.complex128 if dense.is_complex() else torch.float64).norm().item()
    assert Norms([torch.ones(4), tensor]).read() == pytest.approx([2.0, expected], rel=CLOSE)


def test_unreadable_tensors_are_not_measured_rather_than_zero():
    assert Norms([torch.ones(4), torch.ones(3, device="meta")]).read() == [2.0, None]


def test_a_nan_is_not_hidden_by_an_infinity():
    assert math.isnan(total([1.0, math.inf, math.nan]))
    assert total([3.0, math.inf]) == math.inf


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "with a grad scaler"])
def test_the_clipped_share_is_known_on_traced_steps(scaled: bool):
    model, x = stack(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
    expected = []
    with leadline.watch(model, optimizer, every=1) as w:
        for limit in (1e9, 0.01):
            optimizer.zero_grad()
            for part in x.split(3):
                scaler.scale(model(part).square().mean()).backward()
            scaler.unscale_(optimizer)
            made = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
            expected.append(max(0.0, 1 - limit / made))
            scaler.step(optimizer)
            scaler.update()
    assert w.trouble == ""
    assert scalars(w, "grad_clip") == pytest.approx(expected, rel=1e-3)


def test_a_loss_may_be_a_float_or_a_tensor_of_one_or_more_elements():
    assert to_number(2.5) == 2.5
    assert to_number(torch.tensor(2.5, requires_grad=True)) == 2.5
    assert to_number(torch.tensor([1.0, 2.0])) == 1.5
    assert to_number(nn.Parameter(torch.tensor(3.0))) == 3.0


def test_a_parameter_that_only_the_optimizer_holds_has_a_name():
    model, alone = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    table = build_parameter_table(model, [torch.optim.SGD([*model.parameters(), alone], lr=0.1)])
    assert "outside the model, (3,), 2" in table.names


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="this torch cannot shard on a CPU")
@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # what torch 2.6 says
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("axes", "is_sampled"), [((), True), (("data",), True), (("tensor",), False), (("data", "tensor"), False)]
)
def test_a_pass_is_sampled_only_if_its_parameters_are_gathered_whole(axes: tuple[str, ...], is_sampled: bool):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(4, 4))
    if "tensor" in axes:
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
    if "data" in axes:
        fully_shard(model, mesh=mesh["data"])
    assert (sampling_obstacle(model) == "") == is_sampled


@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "complex"])
def test_the_norm_of_a_gradient_is_the_same_in_any_layout(layout: str):
    torch.manual_seed(0)
    dense = torch.randn(4, 5) * (torch.rand(4, 5) > 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that support of this layout is in beta state
        tensor = {
            "sparse": dense.to_sparse,
            "sparse_csr": dense.to_sparse_csr,
            "complex": lambda: torch.complex(dense, torch.zeros_like(dense)),
        }[layout]()
    assert read_one(one_norm(tensor)) == pytest.approx(dense.norm().item(), rel=CLOSE)
