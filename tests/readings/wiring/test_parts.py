"""Attentions, routers, angles, frozen and repeated weights are recognized by their ops and values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.readings.wiring.attention import read_attention_products
from leadline.readings.wiring.frozen import is_random
from leadline.records import Finding, NetworkParts
from leadline.records.parts import AttentionProduct
from leadline.records.report import Report
from tests.support.parts import AttentionNet, ExpertNet, expert_loss
from tests.support.wiring import Function, classes, features, mlp, text, token_loss


def named(report: Report, code: str) -> list[Finding]:
    return [each for each in report.findings if each.code == code]


def severities(report: Report, code: str) -> list[str]:
    return [each.severity for each in named(report, code)]


def parts_of(report: Report) -> NetworkParts:
    assert report.profile.parts is not None
    return report.profile.parts


# Attention.


@pytest.mark.parametrize("scaling", ["none", "rotary", "einsum", "bias"])
def test_attention_without_a_factor_is_named_with_its_line(scaling):
    report = leadline.check(AttentionNet(scaling), *text(), token_loss)
    (finding,) = named(report, "D921")
    assert finding.severity == "warning"
    assert "64 features" in finding.message
    assert "64 ** -0.5" in finding.action
    assert finding.source is not None
    assert finding.source.file.endswith("parts.py")


@pytest.mark.parametrize("scaling", ["after", "before", "fused", "t5", "qk-norm", "cosine", "alibi"])
def test_attention_that_is_scaled_in_any_way_is_not_reported(scaling):
    report = leadline.check(AttentionNet(scaling), *text(), token_loss)
    assert named(report, "D921") == []


def test_the_variance_of_t5_is_measured_and_not_taken_from_the_absence_of_a_division():
    (first, _) = parts_of(leadline.check(AttentionNet("t5"), *text(), token_loss)).attentions
    assert not first.has_factor
    assert first.variance == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize(("factors", "expected"), [((3.0,), 3.0), ((1.0, 3.0), 1.0)])
def test_only_one_number_for_all_heads_is_the_factor_of_an_attention(factors: tuple[float, ...], expected):
    def forward(self: Function, x: Tensor) -> Tensor:
        heads = self.split(x).unflatten(-1, (2, 8)).transpose(1, 2)
        logits = heads @ heads.mT * torch.tensor(factors)[:, None, None]
        return self.out((logits.softmax(-1) @ heads).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Function(forward, split=nn.Linear(8, 16), out=nn.Linear(16, 3))
    seen = leadline.trace(model, torch.randn(4, 6, 8), loss=lambda y: y.square().mean())
    (product,) = read_attention_products(seen)
    assert product.factor == pytest.approx(expected)


def test_narrow_heads_without_a_factor_are_a_note():
    report = leadline.check(AttentionNet("none", width=64, heads=4), *text(), token_loss)
    assert severities(report, "D921") == ["info"]


def test_trained_attention_may_have_large_logits():
    model = AttentionNet("none")
    tokens, targets = text()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        token_loss(model(tokens), targets).backward()
        optimizer.step()
    assert named(leadline.check(model, tokens, targets, token_loss, optimizer, rehearse=False), "D921") == []


def attend(scores: Callable[[Tensor, Tensor], Tensor]) -> list[AttentionProduct]:
    """What is read of attention over projected tokens with these scores."""
    torch.manual_seed(0)

    def forward(self: Function, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        return scores(query, key).softmax(-1) @ value

    layers = {name: nn.Linear(8, 16) for name in ("query", "key", "value")}
    seen = leadline.trace(
        Function(forward, **layers), torch.randn(4, 6, 8), loss=lambda out: out.square().mean()
    )
    return list(read_attention_products(seen))


@pytest.mark.parametrize(
    ("scores", "has_factor"),
    [
        (lambda q, k: q @ k.mT, False),
        (lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), False),
        (lambda q, k: q.tanh() @ k.mT, True),
        (lambda q, k: (0.0 * q) @ k.mT * 0.5, True),
        (lambda q, k: F.one_hot(q.argmax(-1), 16).float() @ k.mT, False),
        (lambda q, k: (q @ k.mT) * torch.ones(6), False),
    ],
)
def test_a_factor_is_a_bounded_function_or_one_number(
    scores: Callable[[Tensor, Tensor], Tensor], has_factor: bool
):
    (found,) = attend(scores)
    assert (found.width, found.keys, found.has_factor) == (16, 6, has_factor)


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: torch.einsum(
            "...qd,...kd->...qk", q, k
        ),  # the width is not looked up behind an ellipsis
        lambda q, k: torch.einsum("d,bqd,bkd->bqk", torch.ones(16), q, k),
        lambda q, k: torch.ones(6, 6).triu(),  # a table, no product
        lambda q, k: (q @ k.mT).tanh(),
        lambda q, k: sum([torch.zeros(())] * 50, q @ k.mT),  # too long a way
    ],
)
def test_scores_whose_product_is_not_found_are_not_read(scores: Callable[[Tensor, Tensor], Tensor]):
    assert attend(scores) == []


# Routers.


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(64, 8), torch.randint(0, 3, (64,))


def check_experts(routing, **sizes: int) -> Report:
    return leadline.check(ExpertNet(routing, **sizes), *inputs(), expert_loss)


@pytest.mark.parametrize("routing", ["scores", "argmax", "corrected", "balanced", "dense", "renormalized"])
@pytest.mark.parametrize("chosen", [1, 2])
def test_a_router_is_found_with_its_weight_and_load(routing, chosen):
    first, second = parts_of(check_experts(routing, chosen=chosen)).routers
    expected = 1 if routing == "argmax" else chosen
    assert (first.weight, first.experts, first.chosen) == ("layers.0.gate.weight", 4, expected)
    assert first.tokens == second.tokens == 64


@pytest.mark.parametrize("routing", ["index", "renormalized"])
def test_a_router_that_gets_no_gradient_is_named(routing):
    (finding,) = named(check_experts(routing), "D923")
    assert finding.severity == "warning"
    assert finding.where == "layers.0.gate.weight"


@pytest.mark.parametrize(
    ("routing", "chosen"), [("scores", 1), ("scores", 2), ("argmax", 1), ("renormalized", 2), ("dense", 2)]
)
def test_a_router_that_weights_its_experts_learns(routing, chosen):
    report = check_experts(routing, chosen=chosen)
    assert named(report, "D923") == []
    assert "warning" not in severities(report, "D922")


def test_a_frozen_router_may_be_random():
    model = ExpertNet("index")
    for layer in model.layers:
        layer.gate.weight.requires_grad_(requires_grad=False)
    assert named(leadline.check(model, *inputs(), expert_loss), "D923") == []


def test_a_router_of_zeros_starts_collapsed():
    (finding,) = named(check_experts("zero"), "D922")
    assert finding.severity == "warning"
    assert "all 64 tokens of the batch go to expert" in finding.message


@pytest.mark.parametrize("routing", ["balanced", "corrected"])
def test_a_router_of_zeros_whose_load_is_balanced_spreads_later(routing):
    model = ExpertNet(routing)
    with torch.no_grad():
        for layer in model.layers:
            layer.gate.weight.zero_()
    assert severities(leadline.check(model, *inputs(), expert_loss), "D922") == ["info"]


def test_experts_without_tokens_are_a_note():
    model = ExpertNet("scores")
    with torch.no_grad():
        for layer in model.layers:
            layer.gate.weight[1:] *= 1e-3
    report = leadline.check(model, *inputs(), expert_loss)
    assert severities(report, "D922") in (["info"], [])
    assert all(router.used < 4 for router in parts_of(report).routers) == bool(named(report, "D922"))


@pytest.mark.parametrize(("routing", "notes"), [("scores", ["info"]), ("balanced", []), ("corrected", [])])
def test_an_auxiliary_loss_or_a_bias_counts_as_balancing(routing, notes):
    assert severities(check_experts(routing, chosen=2), "D924") == notes


def accuracy_and_loss(output: Tensor, targets: Tensor) -> Tensor:
    (output.argmax(-1) == targets).float().mean()
    return F.cross_entropy(output, targets)


def test_an_accuracy_is_no_router():
    report = leadline.check(mlp(), features(), classes(), accuracy_and_loss)
    assert parts_of(report).routers == ()


def test_a_token_that_is_fed_back_is_no_router():
    model = Function(
        lambda self, x: self.head(self.table(self.first(x).argmax(-1)) + self.first(x)),
        first=nn.Linear(8, 5),
        table=nn.Embedding(5, 5),
        head=nn.Linear(5, 3),
    )
    assert parts_of(leadline.check(model, features(), classes(), F.cross_entropy)).routers == ()


# Frozen weights.


def backbone_and_head(*, width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)]
    return nn.Sequential(*layers)


def freeze(model: nn.Sequential, count: int) -> nn.Sequential:
    for layer in list(model)[:count]:
        layer.requires_grad_(requires_grad=False)
    return model


def test_a_head_on_a_random_frozen_backbone_is_a_note_because_random_features_look_the_same():
    report = leadline.check(freeze(backbone_and_head(), 4), features(), classes(), F.cross_entropy)
    (finding,) = named(report, "D925")
    assert (finding.severity, finding.where) == ("info", "2.weight")
    assert "what learns reads only their result" in finding.message


def test_a_head_on_a_trained_backbone_is_not():
    model = backbone_and_head()
    torch.manual_seed(3)
    x = torch.randn(512, 8)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert named(leadline.check(freeze(model, 4), x, y, F.cross_entropy), "D925") == []


def test_a_random_block_that_is_frozen_between_layers_that_learn_is_named():
    model = backbone_and_head()
    model[2].requires_grad_(requires_grad=False)
    report = leadline.check(model, features(), classes(), F.cross_entropy)
    assert severities(report, "D925") == ["info"]


def test_a_frozen_random_judge_after_the_network_is_a_note():
    """A generator is trained through a discriminator that is frozen in this step."""
    torch.manual_seed(0)
    judge = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), judge.requires_grad_(requires_grad=False))
    report = leadline.check(model, features(), loss=lambda y: F.softplus(-y).mean())
    assert severities(report, "D925") == ["info"]


class LowRank(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(0.1 * torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def test_adapters_of_a_random_base_are_a_note():
    torch.manual_seed(0)
    layers = [LowRank(nn.Linear(64, 64)), nn.ReLU(), LowRank(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 3)]
    report = leadline.check(nn.Sequential(*layers), torch.randn(32, 64), classes(), F.cross_entropy)
    assert severities(report, "D925") == ["info"]


INITIALIZERS = {
    "default": lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
    "xavier": nn.init.xavier_normal_,
    "gpt2": lambda w: nn.init.normal_(w, std=0.02),
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "orthogonal": nn.init.orthogonal_,
}


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("shape", [(64, 64), (512, 128), (32, 1024)])
@pytest.mark.parametrize("seed", range(3))
def test_what_an_initializer_leaves_is_random(name, shape, seed):
    torch.manual_seed(seed)
    assert is_random(INITIALIZERS[name](torch.empty(shape)))


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_matrix_with_a_direction_that_stands_out_is_not_random(strength):
    torch.manual_seed(0)
    noise = torch.randn(128, 128)
    learned = strength * 24 * torch.outer(*(F.normalize(torch.randn(128), dim=0) for _ in "ab"))
    assert is_random(noise) != is_random(noise + 2 * learned)


def test_a_matrix_with_larger_rows_is_not_random():
    torch.manual_seed(0)
    assert not is_random(torch.randn(128, 128) * torch.linspace(0.5, 1.5, 128)[:, None])


# Angles.


class Waves(nn.Module):
    """Adds sines of positions to its inputs, in the dtype of the angles."""

    def __init__(self, dtype: torch.dtype, length: int) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(length).to(dtype))
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        angles = self.positions[:, None] * torch.logspace(0, -4, 4).to(self.positions.dtype)
        waves = torch.cat((angles.sin(), angles.cos()), -1).float()
        return self.linear(x + waves).mean(1)


@pytest.mark.parametrize(
    ("dtype", "length", "fires"),
    [
        (torch.bfloat16, 512, True),
        (torch.bfloat16, 128, False),
        (torch.float16, 512, False),
        (torch.float16, 4096, True),
        (torch.float32, 4096, False),
    ],
)
def test_angles_that_their_dtype_cannot_hold_are_named(dtype, length, fires):
    torch.manual_seed(0)
    report = leadline.check(
        Waves(dtype, length), torch.randn(4, length, 8), torch.randint(0, 3, (4,)), F.cross_entropy
    )
    assert bool(named(report, "D926")) == fires


# Repeated modules.


def run_in_turn(self, x):
    for layer in self.layers:
        x = layer(x).relu()
    return self.head(x)


def run_side_by_side(self, x):
    return self.head(sum(layer(x * place) for place, layer in enumerate(self.layers, 1)))


def stack(forward, layers: list[nn.Module]) -> nn.Module:
    return Function(forward, layers=nn.ModuleList(layers), head=nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("forward", "severity"), [(run_in_turn, ["warning"]), (run_side_by_side, ["info"])], ids=["turn", "side"]
)
def test_one_layer_in_several_places_of_a_list_is_named(forward, severity):
    torch.manual_seed(0)
    report = leadline.check(stack(forward, [nn.Linear(8, 8)] * 4), features(), classes(), F.cross_entropy)
    assert severities(report, "D927") == severity
    if severity == ["warning"]:
        assert "4 entries of `layers`" in named(report, "D927")[0].message


def test_layers_of_their_own_are_not():
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(8, 8) for _ in range(4)]
    report = leadline.check(stack(run_in_turn, layers), features(), classes(), F.cross_entropy)
    assert named(report, "D927") == []


def test_activations_may_be_shared():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(8, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 3))
    assert named(leadline.check(model, features(), classes(), F.cross_entropy), "D927") == []


def test_the_parts_survive_json():
    report = leadline.check(ExpertNet("scores"), *inputs(), expert_loss)
    assert Report.from_json(report.to_json()).profile.parts == report.profile.parts
