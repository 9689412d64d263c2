"""Parameter groups, clipping, schedules, z-loss, StableAdamW and Admin's profiling."""

import math

import pytest
import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn import (
    MLP,
    SCHEMES,
    Base,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    Residual,
    StableAdamW,
    adaptive_clip_,
    clip_norm_,
    param_groups,
    profile_admin_,
    schedule,
    z_loss,
)
from leadline.nn.schedules import FullAgain, SlowStart

DERIVED = {name: row for name, row in SCHEMES.items() if row.exponent is not None}


def rates(model: nn.Module, groups: list[dict]) -> dict[str, dict]:
    by_id = {id(p): group for group in groups for p in group["params"]}
    return {name: by_id[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_parameter_is_in_exactly_one_group_and_torch_accepts_them(name, optimizer):
    model = LanguageModel(10, 16, 2, 3, scheme=name)
    groups = param_groups(model, name, optimizer, lr=0.1, weight_decay=0.1)
    placed = [id(p) for group in groups for p in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in model.parameters())
    {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[optimizer](groups)


@pytest.mark.parametrize("name", SCHEMES)
def test_norms_biases_and_scalars_do_not_decay(name):
    model = Encoder(16, 2, 3, scheme=name)
    for key, group in rates(model, param_groups(model, None, "adamw", lr=0.1, weight_decay=0.1)).items():
        is_matrix = dict(model.named_parameters())[key].ndim > 1
        assert (group["weight_decay"] > 0) == is_matrix, key


@pytest.mark.parametrize("name", DERIVED)
def test_rates_of_matrices_follow_the_depth_law(name):
    """Twenty blocks are forty sub-layers: ten times the base of four."""
    a, model = DERIVED[name].exponent, Encoder(16, 2, 20, scheme=name)
    key = "stack.blocks.7.feed_forward.branch.fc1.weight"
    sgd = rates(model, param_groups(model, name, torch.optim.SGD, lr=0.1))[key]
    adam = rates(model, param_groups(model, name, torch.optim.AdamW, lr=0.1))[key]
    assert sgd["lr"] == pytest.approx(0.1 * 10 ** (2 * a - 1))
    assert adam["lr"] == pytest.approx(0.1 * 10 ** (a - 1))
    assert adam["eps"] == pytest.approx(1e-8 * 10**-a)


@pytest.mark.parametrize("name", ["deepnorm", "deepnorm-adam", "keel"])
def test_norms_on_the_stream_learn_at_a_rate_over_depth(name):
    model = Encoder(16, 2, 20, scheme=name)
    for family in ("sgd", "adam"):
        group = rates(model, param_groups(model, name, family, lr=0.1))[
            "stack.blocks.3.attention.norm_post.bias"
        ]
        assert group["lr"] == pytest.approx(0.01)


def test_completep_scales_rate_decay_and_epsilon_with_width():
    model = Encoder(64, 2, 2, scheme="residual-linear")
    groups = rates(model, param_groups(model, None, "adamw", lr=0.1, weight_decay=0.1, base=Base(width=16)))
    matrix, bias = (
        groups["stack.blocks.0.attention.branch.qkv.weight"],
        groups["stack.blocks.0.attention.branch.qkv.bias"],
    )
    assert (matrix["lr"], matrix["weight_decay"], matrix["eps"]) == pytest.approx((0.025, 0.4, 0.25e-8))
    assert bias["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_the_head_changes_the_outputs_by_as_much_at_any_width(optimizer):
    changes = []
    for width in (32, 256):
        torch.manual_seed(0)
        model = MLP(8, width, 4, 8, scheme="residual-linear")
        groups = param_groups(model, None, optimizer, lr=1e-3, weight_decay=0.1, base=Base(width=32))
        every = groups if optimizer == "adamw" else [*groups.muon, *groups.adamw]
        chosen = rates(model, every)["output.weight"]
        x = torch.randn(64, 8)
        before = model(x)
        (gradient,) = torch.autograd.grad((before * torch.randn(64, 8)).sum(), model.output.weight)
        with torch.no_grad():
            model.output.weight -= chosen["lr"] * gradient.sign()  # the first step of Adam
            changes.append(float((model(x) - before).square().mean().sqrt()))
        assert chosen["lr"] * chosen["weight_decay"] == pytest.approx(1e-4)
    assert changes[1] / changes[0] == pytest.approx(1, abs=0.3)


def test_a_head_that_is_tied_to_an_embedding_keeps_its_rate():
    model = LanguageModel(11, 64, 2, 2, scheme="residual-linear")
    assert (
        rates(model, param_groups(model, None, "adamw", 0.1, base=Base(width=16)))["head.weight"]["lr"]
        == 0.025
    )
    model.head.weight = model.embedding.weight
    assert (
        rates(model, param_groups(model, None, "adamw", 0.1, base=Base(width=16)))["embedding.weight"]["lr"]
        == 0.1
    )


def test_muon_gets_the_matrices_of_the_branches_and_adamw_all_else():
    model = LanguageModel(11, 16, 2, 3, scheme="residual-linear")
    groups = param_groups(model, None, "muon", lr=0.01, weight_decay=0.1)
    named = {id(p): name for name, p in model.named_parameters()}
    muon = {named[id(p)] for group in groups.muon for p in group["params"]}
    adamw = {named[id(p)] for group in groups.adamw for p in group["params"]}
    assert muon | adamw == set(named.values())
    assert not muon & adamw
    assert muon == {n for n, p in model.named_parameters() if ".branch." in n and p.ndim == 2}
    torch.optim.AdamW(groups.adamw)
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon(groups.muon)


def muon_change(width: int, depth: int, scheme: str, adamw_lr: float | None) -> float:
    """The change of the last hidden layer by one Muon step at the rates of `param_groups`."""
    generator = torch.Generator().manual_seed(0)
    model = MLP(8, width, depth, 8, scheme=scheme, generator=generator)
    base = Base(sublayers=4, width=32)
    groups = param_groups(model, None, "muon", lr=1e-5, base=base, adamw_lr=adamw_lr).muon
    hidden: list[Tensor] = []
    model.output.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0].detach()))
    x, readout = torch.randn(16, 8, generator=generator), torch.randn(16, 8, generator=generator)
    (model(x) * readout).sum().backward()
    with torch.no_grad():
        for group in groups:
            for p in group["params"]:
                left, _, right = torch.linalg.svd(p.grad, full_matrices=False)
                size = (
                    0.2 * max(p.shape) ** 0.5
                    if adamw_lr is None
                    else max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                )
                p.sub_(left @ right, alpha=group["lr"] * size)
        model(x)
    return float((hidden[1] - hidden[0]).square().mean().sqrt())


@pytest.mark.parametrize("adamw_lr", [None, 1e-3])
def test_the_step_of_muon_at_its_rates_depends_neither_on_width_nor_on_depth(adamw_lr):
    for scheme in ("residual-linear", "residual-sqrt"):
        small, wide = (muon_change(width, 8, scheme, adamw_lr) for width in (32, 256))
        deep = muon_change(32, 64, scheme, adamw_lr)
        assert wide / small == pytest.approx(1, abs=0.35)
        assert deep / small == pytest.approx(1, abs=0.35)


def test_a_rate_for_adamw_is_refused_without_muon():
    model = MLP(2, 4, 2, 1, scheme="pre")
    with pytest.raises(InputError, match="muon"):
        param_groups(model, None, "adamw", lr=0.1, adamw_lr=0.1)


def test_the_two_stacks_of_a_pair_have_their_own_depth():
    model = EncoderDecoder(10, 16, 2, 4, decoder_depth=2, scheme="residual-sqrt")
    groups = rates(model, param_groups(model, None, "adam", lr=1.0))
    assert groups["encoder.blocks.0.attention.branch.qkv.weight"]["lr"] == pytest.approx((8 / 4) ** -0.5)
    assert groups["decoder.blocks.0.attention.branch.qkv.weight"]["lr"] == pytest.approx((6 / 4) ** -0.5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((nn.Linear(2, 2), None, "adam"), "Residual"),
        ((MLP(2, 4, 2, 1, scheme="pre"), "post", "adam"), "scheme"),
    ],
)
def test_groups_of_a_model_that_does_not_fit_are_refused(arguments, word):
    with pytest.raises(InputError, match=word):
        param_groups(*arguments, lr=0.1)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InputError, match="optimizer"):
        param_groups(MLP(2, 4, 2, 1, scheme="pre"), None, "quantum", lr=0.1)


def test_clipping_by_norm_keeps_the_direction_and_returns_the_factor():
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor([3.0, 4.0, 0.0, 0.0])
    done = clip_norm_([parameter], 1.0)
    assert (done.norm, done.factor) == pytest.approx((5.0, 0.2))
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8, 0.0, 0.0]))
    assert clip_norm_([parameter], 2.0).factor == 1.0


def test_a_gradient_that_is_not_finite_is_reported_and_left():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([math.inf, 1.0])
    assert clip_norm_([parameter], 1.0).factor == 1.0


def test_adaptive_clipping_limits_each_unit_by_its_own_weight():
    parameter = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]]))
    parameter.grad = torch.ones(3, 2)
    share = adaptive_clip_([parameter], clip=0.1)
    norms = parameter.grad.norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor([0.5, 1e-4, 2**0.5]))  # 0.1 * 5, 0.1 * floor, untouched
    assert share == pytest.approx(2 / 3)


def test_z_loss_is_the_mean_squared_log_partition():
    logits = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    expected = 1e-4 * (math.log(2) ** 2 + (1 + math.log(2)) ** 2) / 2
    assert float(z_loss(logits)) == pytest.approx(expected)


def test_stable_adamw_is_adamw_while_gradients_are_ordinary():
    """Constant gradients have RMS(g^2/v) = 1 once v is corrected, so the two must agree."""
    weights = [nn.Parameter(torch.ones(5)) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW([weights[0]], lr=0.1, betas=(0.9, 0.99), weight_decay=0.01),
        StableAdamW([weights[1]], lr=0.1),
    ]
    for _ in range(5):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = torch.full((5,), 0.3)
            optimizer.step()
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


def test_stable_adamw_takes_a_smaller_step_after_a_gradient_spike():
    moved = {}
    for cls in (torch.optim.AdamW, StableAdamW):
        weight = nn.Parameter(torch.zeros(5))
        optimizer = cls([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.0)
        for size in [1e-3] * 200 + [1.0]:
            before = weight.detach().clone()
            weight.grad = torch.full((5,), size)
            optimizer.step()
        moved[cls] = float((weight.detach() - before).norm())
    assert moved[StableAdamW] < 0.25 * moved[torch.optim.AdamW]


def test_schedules_rise_stay_and_fall_as_configured():
    none = schedule("none", warmup_steps=4)
    assert [none(t) for t in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = schedule("linear", warmup_steps=2, total_steps=12, floor=0.1)
    assert (linear(2), linear(7), linear(12), linear(99)) == pytest.approx((1.0, 0.55, 0.1, 0.1))
    cosine = schedule("cosine", total_steps=10)
    assert (cosine(0), cosine(5), cosine(10)) == pytest.approx((1.0, 0.5, 0.0), abs=1e-12)


def test_a_falling_schedule_without_an_end_is_refused():
    with pytest.raises(InputError, match="total_steps"):
        schedule("cosine", warmup_steps=10)


def test_admin_profiling_sets_each_skip_from_the_branches_below_it():
    model = Encoder(32, 2, 4, scheme="admin", generator=torch.Generator().manual_seed(0))
    x = torch.randn(4, 6, 32)
    omegas = profile_admin_(model, x)
    skips = [float(m.skip_weight.detach().unique()) for m in model.modules() if isinstance(m, Residual)]
    assert skips == pytest.approx(omegas)
    assert omegas == sorted(omegas)
    assert omegas[0] == pytest.approx(float(x.var()) ** 0.5)
    first = model.stack.blocks[0].attention.branch
    assert omegas[1] ** 2 == pytest.approx(float(x.var() + first(x).var().detach()), rel=1e-4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_admin_profiling_of_another_scheme_is_refused():
    with pytest.raises(InputError, match="admin"):
        profile_admin_(Encoder(16, 2, 2, scheme="pre"), torch.randn(1, 3, 16))


def test_a_step_with_groups_lowers_the_loss():
    model = MLP(4, 16, 40, 1, scheme="residual-linear", generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    optimizer = torch.optim.AdamW(param_groups(model, None, "adamw", lr=1e-2))
    losses = []
    for _ in range(20):
        loss = (model(x) - y).square().mean()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


def test_a_slow_start_raises_the_rate_linearly_and_then_leaves_it_alone():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    before, after, rates_used = SlowStart(2), FullAgain(2), []
    for _ in range(4):
        before(optimizer, (), {})
        rates_used.append(optimizer.param_groups[0]["lr"])
        after(optimizer, (), {})
    assert rates_used == [0.5, 1.0, 1.0, 1.0]


def test_parameters_without_a_gradient_are_neither_clipped_nor_moved():
    used, unused = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    used.grad = torch.full((2, 2), 100.0)
    assert adaptive_clip_([used, unused], clip=0.01) == 1.0
    optimizer = StableAdamW([used, unused], lr=0.1)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    weight = nn.Parameter(torch.ones(3))
    optimizer = StableAdamW([weight], lr=0.1)

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3.0
    assert weight.max() < 1


def test_a_schedule_of_an_unknown_shape_is_refused():
    with pytest.raises(InputError, match="none, linear or cosine"):
        schedule("square", warmup_steps=1, total_steps=5)
