"""Pretrained weights are recognized, and fine-tuning them in any of the usual ways raises no alarm."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.nn import LanguageModel, Options
from leadline.records.profile import MIN_TRAINED_SHARE

TOKENS, WIDTH = 23, 48
OPTIONS = Options(positions="learned", hidden=96)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Arithmetic sequences; the task is to continue them."""
    generator = torch.Generator().manual_seed(seed)
    start, step = (torch.randint(1, TOKENS, (size, 1), generator=generator) for _ in range(2))
    tokens = (start + (step % 3 + 1) * torch.arange(13)) % TOKENS
    return tokens[:, :-1], tokens[:, 1:]


def fresh() -> LanguageModel:
    """A language model with the small initial weights of GPT-2, which training soon outgrows."""
    torch.manual_seed(0)
    model = LanguageModel(TOKENS, WIDTH, 2, 3, scheme="pre", max_len=16, options=OPTIONS)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "stack" in name:
            nn.init.normal_(parameter, std=0.02)
    return model


@cache
def trained_weights() -> dict[str, Tensor]:
    model = fresh()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(120):
        inputs, targets = batch(step)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def pretrained() -> LanguageModel:
    model = fresh()
    model.load_state_dict(trained_weights())
    return model


class LowRank(nn.Module):
    """LoRA, or DoRA with `magnitude`, beside a frozen linear layer."""

    def __init__(self, base: nn.Linear, *, rank: int = 4, magnitude: bool = False) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.size = nn.Parameter(base.weight.detach().norm(dim=1, keepdim=True)) if magnitude else None

    def forward(self, x: Tensor) -> Tensor:
        if self.size is None:
            return self.base(x) + 2.0 * (x @ self.down.T @ self.up.T)
        weight = self.base.weight + 2.0 * self.up @ self.down
        return F.linear(x, self.size * weight / weight.norm(dim=1, keepdim=True).detach(), self.base.bias)


class Bottleneck(nn.Module):
    """An adapter after a frozen linear layer; it starts as the identity."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.out_features, 4), nn.Linear(4, base.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y + self.up(F.gelu(self.down(y)))


def tuned(kind: str) -> nn.Module:
    """A pretrained model prepared for one kind of fine-tuning."""
    model = pretrained()
    if kind == "everything":
        return model
    model.requires_grad_(requires_grad=False)
    for block in model.stack.blocks:
        if kind in ("lora", "dora"):
            for name in ("fc1", "fc2"):
                old = getattr(block.feed_forward.branch, name)
                setattr(block.feed_forward.branch, name, LowRank(old, magnitude=kind == "dora"))
        if kind == "adapter":
            block.feed_forward.branch.fc2 = Bottleneck(block.feed_forward.branch.fc2)
    if kind == "new head":
        model.head = nn.Linear(WIDTH, TOKENS)
    if kind == "last block":
        model.stack.blocks[-1].requires_grad_()
    if kind in ("biases", "norms"):
        for name, parameter in model.named_parameters():
            is_kind = name.endswith("bias") if kind == "biases" else "norm" in name
            parameter.requires_grad_(is_kind)
    return model


def report_of(model: nn.Module, *, lr: float = 1e-3, make=torch.optim.AdamW):
    inputs, targets = batch(999)
    trainable = [each for each in model.parameters() if each.requires_grad]
    return leadline.check(model, inputs, targets.roll(1, 0), loss_of, make(trainable, lr=lr), rehearse=False)


def test_trained_weights_are_recognized_and_fresh_ones_are_not():
    assert report_of(pretrained()).profile.is_pretrained
    assert report_of(fresh()).profile.parts.trained < MIN_TRAINED_SHARE / 2


@pytest.mark.parametrize("scheme", ["deepnorm", "fixup", "magneto", "mhc"])
def test_packed_matrices_with_parts_of_different_variance_do_not_look_trained(scheme: str):
    torch.manual_seed(0)
    model = LanguageModel(TOKENS, 48, 2, 3, scheme=scheme, max_len=16)
    assert report_of(model).profile.parts.trained < MIN_TRAINED_SHARE / 2


@pytest.mark.parametrize(
    "init", [nn.init.orthogonal_, nn.init.xavier_uniform_, nn.init.uniform_, nn.init.trunc_normal_]
)
def test_no_usual_initializer_looks_like_training(init):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(6)), nn.Linear(48, 48))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            init(module.weight)
    trace = leadline.check(model, torch.randn(8, 48), torch.randn(8, 48), F.mse_loss, rehearse=False)
    assert trace.profile.parts.trained < MIN_TRAINED_SHARE / 2


@pytest.mark.parametrize(
    "kind", ["everything", "lora", "dora", "adapter", "new head", "last block", "biases", "norms"]
)
def test_fine_tuning_a_pretrained_model_gets_no_warning(kind: str):
    findings = report_of(tuned(kind)).findings
    assert [(each.code, each.message) for each in findings if each.severity != "info"] == []


def test_a_transposed_frozen_weight_that_is_wrapped_anew_in_each_pass_is_no_forgotten_parameter():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Parameter(torch.randn(16, 16) / 4, requires_grad=False)
            self.scale, self.head = nn.Parameter(torch.ones(16)), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.scale * (x @ nn.Parameter(self.frozen.T)))

    model = Wrapped()
    optimizer = torch.optim.AdamW([model.scale, *model.head.parameters()])
    report = leadline.check(
        model, torch.randn(8, 16), torch.randn(8, 2), F.mse_loss, optimizer, rehearse=False
    )
    assert not any(each.code == "D915" for each in report.findings)


def test_a_loss_far_above_guessing_is_a_note_for_a_pretrained_model_and_a_warning_for_a_fresh_one():
    def loud(model: LanguageModel) -> LanguageModel:
        with torch.no_grad():
            model.head.weight.mul_(30)
        return model

    def severity(model: nn.Module) -> str:
        findings = report_of(model, make=torch.optim.SGD, lr=1e-4).findings
        return next(each.severity for each in findings if each.code == "I308")

    assert severity(loud(fresh())) == "warning"
    assert severity(loud(pretrained())) == "info"
