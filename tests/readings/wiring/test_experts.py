"""Load and gradient of each expert: read from any mixture, judged by checks, shown, and recorded by a watch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.checks._examples import vector_history
from leadline.checks._history import RunLayout
from leadline.checks.run.routing_collapse import routing_collapse
from leadline.checks.run.starved_experts import starved_experts
from leadline.nn import LanguageModel, Options, balance_loss
from leadline.readings.wiring.routing import read_routers
from leadline.records import Router
from leadline.records.report import Report
from leadline.report.pages.wiring import experts_section
from tests.support.parts import ExpertNet, expert_loss
from tests.support.wiring import token_loss

TOKENS, WIDTH, EXPERTS = 64, 8, 4


class Stacked(nn.Module):
    """Experts as one parameter (experts, hidden, width), reached by one-hot choices, as large models do."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.stem = nn.Linear(8, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 16, WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16) / 4)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        gates = (F.one_hot(chosen, EXPERTS) * weights[..., None]).sum(1)
        hidden = torch.einsum("eoi,ni->neo", self.up, x).relu()
        return self.head(x + torch.einsum("eio,neo,ne->ni", self.down, hidden, gates))


class Numbered(nn.Module):
    """Experts under names with numbers, as in Switch Transformers of Hugging Face."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.stem = nn.Linear(8, WIDTH)
        self.router = nn.ModuleDict({"classifier": nn.Linear(WIDTH, EXPERTS, bias=False)})
        self.experts = nn.ModuleDict({f"expert_{k}": nn.Linear(WIDTH, WIDTH) for k in range(EXPERTS)})
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weight, chosen = self.router["classifier"](x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts.values()):
            rows = chosen == k
            out[rows] = expert(x[rows]) * weight[rows, None]
        return self.head(x + out)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(TOKENS, 8), torch.randint(0, 3, (TOKENS,))


def routers(report: Report) -> tuple[Router, ...]:
    assert report.profile.parts is not None
    return report.profile.parts.routers


def norms(model: nn.Module, prefixes: list[str]) -> list[float]:
    """The gradient norm of all parameters under each prefix, after a plain backward pass."""
    return [
        torch.cat([p.grad.flatten() for name, p in model.named_parameters() if name.startswith(prefix)])
        .norm()
        .item()
        for prefix in prefixes
    ]


def test_experts_in_a_list_have_the_gradients_of_a_plain_backward_pass():
    model = ExpertNet("scores", chosen=2)
    first, _ = routers(leadline.check(model, *batch(), expert_loss, rehearse=False))
    x, y = batch()
    expert_loss(model(x), y).backward()
    expected = norms(model, [f"layers.0.bodies.{k}." for k in range(EXPERTS)])
    assert first.expert_gradients == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacked_experts_have_the_gradients_of_their_slices(dtype):
    model = Stacked().to(dtype)
    x, y = batch()
    x = x.to(dtype)
    (router,) = routers(leadline.check(model, x, y, F.cross_entropy, rehearse=False))
    F.cross_entropy(model(x), y).backward()
    expected = [(model.up.grad[k].norm() ** 2 + model.down.grad[k].norm() ** 2).sqrt() for k in range(4)]
    assert router.expert_gradients == pytest.approx([float(each) for each in expected], rel=1e-4)
    assert sum(router.load) == 2 * TOKENS


def chosen_by(scores: Callable[[Choosing, Tensor], Tensor]) -> tuple[Router, ...]:
    """The routers of a network that selects rows of a table by the largest of these scores."""
    torch.manual_seed(0)
    model = Choosing(scores)
    return read_routers(
        leadline.trace(model, torch.randn(TOKENS, WIDTH), loss=lambda out: out.square().mean())
    )


class Choosing(nn.Module):
    def __init__(self, scores: Callable[[Choosing, Tensor], Tensor]) -> None:
        super().__init__()
        self.scores = scores
        self.gate, self.body = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, EXPERTS)
        self.register_buffer("fixed", torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.scores(self, x).topk(2, -1).indices
        return self.body(x).gather(1, chosen)


def test_scores_of_a_learned_weight_are_those_of_a_router():
    (router,) = chosen_by(lambda self, x: self.gate(x).softmax(-1))
    assert (router.weight, router.experts, router.chosen) == ("gate.weight", EXPERTS, 2)


@pytest.mark.parametrize(
    "scores",
    [
        lambda self, x: F.linear(x, self.fixed),  # nothing learns to route
        lambda self, x: x[:, :EXPERTS],
        lambda self, x: self.gate(x).cumsum(-1),
        lambda self, x: sum([torch.zeros(())] * 40, self.gate(x)),  # too long a way
        lambda self, x: F.layer_norm(self.gate(x), (EXPERTS,)),
    ],
)
def test_scores_that_no_learned_weight_gave_directly_are_not_those_of_a_router(
    scores: Callable[[Choosing, Tensor], Tensor],
):
    assert chosen_by(scores) == ()


def test_a_choice_of_tokens_that_an_embedding_reads_is_not_that_of_a_router():
    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.table = nn.Linear(WIDTH, EXPERTS), nn.Embedding(EXPERTS, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(self.head(x).argmax(-1).clone()) + self.head(x).sum(-1, keepdim=True)

    seen = leadline.trace(Sampler(), torch.randn(TOKENS, WIDTH), loss=lambda out: out.square().mean())
    assert any(value.choices for value in seen.values)
    assert read_routers(seen) == ()


def test_experts_far_from_their_router_have_no_gradients_of_their_own():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(WIDTH, EXPERTS)
            inner: nn.Module = nn.Linear(WIDTH, EXPERTS)
            for _ in range(4):
                inner = nn.Sequential(inner)
            self.gates = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).gather(1, self.gates(x).topk(2, -1).indices)

    seen = leadline.trace(Deep(), torch.randn(TOKENS, WIDTH), loss=lambda out: out.square().mean())
    (router,) = read_routers(seen)
    assert router.weight == "gates.0.0.0.0.weight"
    assert router.expert_gradients == ()


def test_experts_under_numbered_names_are_found():
    model = Numbered()
    (router,) = routers(leadline.check(model, *batch(), F.cross_entropy, rehearse=False))
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    expected = norms(model, [f"experts.expert_{k}." for k in range(EXPERTS)])
    assert router.expert_gradients == pytest.approx(expected, rel=1e-4)


def test_an_expert_without_tokens_has_a_gradient_of_zero():
    model = ExpertNet("scores")
    with torch.no_grad():
        for layer in model.layers:
            layer.gate.bias = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -100.0]))
    first, _ = routers(leadline.check(model, *batch(), expert_loss, rehearse=False))
    assert first.load[3] == first.expert_gradients[3] == 0
    assert min(first.expert_gradients[:3]) > 0


def test_layers_that_happen_to_be_as_many_as_the_experts_are_no_experts():
    class Chosen(nn.Module):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.gates = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer, gate in zip(self.layers, self.gates, strict=True):
                weight, chosen = gate(x).softmax(-1).max(-1)
                x = x + layer(x) * weight[:, None] * (chosen[:, None] + 1.0)
            return x[:, :3]

    found = routers(leadline.check(Chosen(), *batch(), F.cross_entropy, rehearse=False))
    assert len(found) == 3
    assert all(each.expert_gradients == () for each in found)


def language_model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocab=31, width=16, heads=2, depth=2, options=Options(experts=4))


def test_the_mixture_of_leadline_has_load_and_gradient_of_each_expert():
    x = torch.randint(0, 31, (4, 32), generator=torch.Generator().manual_seed(0))
    found = routers(leadline.check(language_model(), x, x.roll(-1, 1), token_loss, rehearse=False))
    assert len(found) == 2
    assert all(len(each.expert_gradients) == 4 and min(each.expert_gradients) > 0 for each in found)
    assert all(sum(each.load) == 2 * 4 * 32 for each in found)


def test_one_router_per_weight_also_if_an_auxiliary_loss_chooses_again():
    class Twice(ExpertNet):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits, balance = super().forward(x)
            scores = self.layers[0].gate(self.stem(x)).softmax(-1)
            again = F.one_hot(scores.topk(1, -1).indices, 4).float().mean((0, 1))
            return logits, balance + (again * scores.mean(0)).sum()

    found = routers(leadline.check(Twice("scores"), *batch(), expert_loss, rehearse=False))
    assert [each.weight for each in found] == ["layers.0.gate.weight", "layers.1.gate.weight"]


# The checks.


def with_load(*bias: float, routing: str = "scores", biased: slice = slice(None)) -> Report:
    model = ExpertNet(routing)
    with torch.no_grad():
        for layer in model.layers:
            layer.gate.weight *= 0.5
        for layer in model.layers[biased]:
            layer.gate.bias = nn.Parameter(torch.tensor(bias))
    return leadline.check(model, *batch(), expert_loss, rehearse=False)


@pytest.mark.parametrize(("routing", "severity"), [("scores", "warning"), ("balanced", "info")])
def test_an_expert_that_takes_nearly_all_tokens_is_named(routing, severity):
    report = with_load(0.5, 0.0, 0.0, 0.0, routing=routing)
    assert all(0.9 < each.top_share < 1 for each in routers(report))
    (finding,) = [each for each in report.findings if each.code == "D922"]
    assert finding.severity == severity
    assert "nearly all tokens" in finding.message


def test_one_of_two_routers_may_prefer_an_expert_by_the_draw_of_its_weights():
    report = with_load(0.5, 0.0, 0.0, 0.0, biased=slice(1))
    assert [each.top_share > 0.9 for each in routers(report)] == [True, False]
    assert [each.severity for each in report.findings if each.code == "D922"] == ["info"]


def test_an_uneven_load_is_no_collapse():
    report = with_load(0.3, 0.0, 0.0, 0.0)
    assert max(each.top_share for each in routers(report)) < 0.9
    assert [each for each in report.findings if each.code == "D922"] == []


@pytest.mark.parametrize("scheme", ["rezero", "skipinit", "fixup"])
def test_a_router_in_a_branch_that_starts_at_zero_is_not_reported(scheme):
    torch.manual_seed(0)
    model = LanguageModel(vocab=31, width=16, heads=2, depth=2, scheme=scheme, options=Options(experts=4))
    x = torch.randint(0, 31, (4, 32), generator=torch.Generator().manual_seed(0))
    report = leadline.check(model, x, x.roll(-1, 1), token_loss, rehearse=False)
    assert {each.gradient for each in routers(report)} == {"zero"}
    assert [each for each in report.findings if each.code == "D923"] == []


LAYOUT = RunLayout(experts=tuple(f"router {expert}" for expert in range(64)))


def loads(*, tokens: float, idle: int):
    return vector_history(
        400, {"expert_tokens": lambda _: [0.0] * idle + [tokens] * (64 - idle)}, every=20, layout=LAYOUT
    )


def test_an_expert_is_starved_only_if_enough_tokens_were_routed_to_tell():
    assert len([*starved_experts(loads(tokens=8.0, idle=3))]) == 1
    assert [*starved_experts(loads(tokens=1.0, idle=3))] == []
    assert [*starved_experts(loads(tokens=8.0, idle=0))] == []


def test_a_load_that_was_uneven_from_the_start_did_not_collapse():
    assert [*routing_collapse(loads(tokens=8.0, idle=60))] == []


def test_a_watch_records_tokens_and_gradient_of_each_expert():
    model = language_model()
    x = torch.randint(0, 31, (4, 32), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with leadline.watch(model, optimizer, every=1) as w:
        for _ in range(2):
            optimizer.zero_grad()
            w.loss(token_loss(model(x), x.roll(-1, 1)) + 0.01 * balance_loss(model)).backward()
            optimizer.step()
    labels = w.history.layout.experts
    assert len(labels) == 8
    assert labels[5] == "stack.blocks.1.feed_forward.branch.router.weight 1"
    assert sum(w.history.recent("expert_tokens").rows[-1]) == 2 * 2 * 4 * 32
    gradients = w.history.recent("expert_grad_norm").rows[-1]
    assert len(gradients) == 8
    assert min(gradients) > 0


def test_the_report_shows_each_router_with_its_load():
    section = experts_section(
        leadline.check(ExpertNet("scores"), *batch(), expert_loss, rehearse=False).profile.parts
    )
    (table,) = section.verbose
    assert [row[0] for row in table.rows] == ["layers.0.gate.weight", "layers.1.gate.weight"]
    assert len(table.rows[0][1].values) == len(table.rows[0][4].values) == EXPERTS
    assert experts_section(None).verbose == ()
