"""Second set: a state-space language model, distillation, answer spans and a decision transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Bytes through diagonal state spaces, convolved by Fourier transforms.


class StateSpace(nn.Module):
    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.decay = nn.Parameter(torch.linspace(-4, 0, width))
        self.mix = nn.Parameter(torch.randn(width) / 2 + 1)
        self.out = nn.Linear(width, width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u = self.norm(x)
        steps = torch.arange(length)[:, None]
        kernel = self.mix * torch.exp(-self.decay.exp() * steps)
        if self.bug == "kernel forgets at once":
            kernel = kernel * (steps == 0)
        size = length if self.bug == "circular convolution" else 2 * length
        spectrum = torch.fft.rfft(kernel, size, dim=0)
        if self.bug == "correlation instead of convolution":
            spectrum = spectrum.conj()
        y = torch.fft.irfft(torch.fft.rfft(u, size, dim=1) * spectrum, size, dim=1)[:, :length]
        return x + self.out(F.gelu(y))


class StateSpaceLM(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.blocks = nn.ModuleList(StateSpace(32, bug) for _ in range(3))
        self.norm = nn.LayerNorm(32)
        self.unembed = nn.Linear(32, 40)
        self.bug = bug

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = block(h)
        return self.unembed(self.norm(h))


def byte_loss(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def byte_loss_with_shift(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), following[:, 1:].flatten())


@problem(
    "state-space",
    "state-space language model",
    bug("circular convolution", "visible-answer", "input", "blocks.0"),
    bug("correlation instead of convolution", "visible-answer", "input", "blocks.0"),
    bug("kernel forgets at once", "unused-past"),
    bug("next bytes shifted in the loss, too", "shifted-targets", "2 positions"),
    bug("asked for the bytes themselves", "shifted-targets", "own position"),
    bug("decays not in the optimizer", "forgotten-parameters", "blocks.0.decay"),
    part="second set",
)
def state_space(bug: str) -> Case:
    model = StateSpaceLM(bug)
    text = torch.randint(0, 40, (6, 25))
    inputs, following = text[:, :-1], text[:, 1:]
    if bug == "asked for the bytes themselves":
        following = inputs.clone()
    loss = byte_loss_with_shift if bug == "next bytes shifted in the loss, too" else byte_loss
    left_out = "decay" if bug == "decays not in the optimizer" else "none"
    trained = [each for name, each in model.named_parameters() if left_out not in name]
    return Case(model, inputs, following, loss, torch.optim.AdamW(trained, lr=1e-3))


# Distillation: a small network learns the answers of a trained, frozen one that is part of the same module.


def fitted_teacher() -> nn.Module:
    """A teacher with the weights of an earlier training, here of a few steps."""
    teacher = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    x = torch.randn(64, 12)
    y = x[:, :6].argmax(1)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return teacher.requires_grad_(False)


class Distillation(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.teacher = fitted_teacher()
        self.student = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 6))
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            teacher = self.teacher(x)
        if self.bug == "student reads the batch in reverse":
            x = x.flip(0)
        with torch.set_grad_enabled(self.bug != "no_grad reaches into the student"):
            h = self.student[:2](x)
        student = self.student[2](h)
        return student, teacher


class DistillationLoss:
    def __init__(self, bug: str) -> None:
        self.bug = bug

    def __call__(self, output: tuple[Tensor, Tensor]) -> Tensor:
        student, teacher = output
        axis = 0 if self.bug == "log_softmax over the batch" else 1
        said = student.softmax(1) if self.bug == "softmax without log" else (student / 2).log_softmax(axis)
        divergence = F.kl_div(said, (teacher / 2).softmax(1), reduction="batchmean")
        return -divergence if self.bug == "divergence maximized" else divergence


@problem(
    "distillation",
    "distillation",
    bug("softmax without log", "unnormalized-scores", "kl_div", "probabilities"),
    bug("log_softmax over the batch", "unnormalized-scores or mixed-targets", "kl_div"),
    bug("divergence maximized", "negated-loss"),
    bug("no_grad reaches into the student", "blocked-path", "student.0"),
    bug("student reads the batch in reverse", "mixed-samples", "flip"),
    bug("optimizer got the teacher", "forgotten-parameters or foreign-optimizer", "student.0.weight"),
    part="second set",
)
def distillation(bug: str) -> Case:
    model = Distillation(bug)
    trained = model.teacher if bug == "optimizer got the teacher" else model.student
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    return Case(model, torch.randn(30, 12), None, DistillationLoss(bug), optimizer)


# Where in a text an answer begins and ends.


class SpanReader(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 32, padding_idx=0)
        self.segments = nn.Embedding(2, 32)
        self.places = nn.Embedding(18, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.begin = nn.Linear(32, 1)
        self.end = nn.Linear(32, 1)
        self.bug = bug

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        if self.bug != "segments forgotten":
            h = h + self.segments(segments)
        hidden = None if self.bug == "padding visible" else ~mask
        h = self.encoder(h, src_key_padding_mask=hidden)
        begin = self.begin(h)[..., 0]
        end = (self.begin if self.bug == "end from the layer of the begin" else self.end)(h)[..., 0]
        begin, end = begin.masked_fill(~mask, -1e4), end.masked_fill(~mask, -1e4)
        if self.bug == "log_softmax over the texts":
            return begin.log_softmax(0), end.log_softmax(0)
        return begin.log_softmax(1), end.log_softmax(1)


def span_loss(output: tuple[Tensor, Tensor], spans: Tensor) -> Tensor:
    begin, end = output
    return (F.nll_loss(begin, spans[:, 0]) + F.nll_loss(end, spans[:, 1])) / 2


@problem(
    "answer-span",
    "question answering",
    bug("padding visible", "unmasked-padding", "tokens"),
    bug("segments forgotten", "idle-input", "segments", note=True),
    bug("end from the layer of the begin", "idle-modules or repeated-module or discarded-results", "end"),
    bug("log_softmax over the texts", "unnormalized-scores or mixed-samples", "log_softmax"),
    bug("every answer begins and ends at 0", "single-answer", "100 %"),
    bug("left in eval mode", "evaluation-mode", "dropout"),
    part="second set",
)
def answer_span(bug: str) -> Case:
    model = SpanReader(bug)
    lengths = torch.tensor([18, 14, 11, 16, 9, 18, 12, 15])
    mask = torch.arange(18) < lengths[:, None]
    tokens = torch.randint(1, 60, (8, 18)) * mask
    segments = (torch.arange(18) >= 6).long().expand(8, 18) * mask
    begins = 6 + torch.arange(8) % 3
    spans = torch.stack([begins, begins + torch.tensor([0, 1, 0, 1, 0, 2, 1, 2])], 1)
    if bug == "every answer begins and ends at 0":
        spans = torch.zeros_like(spans)
    if bug == "left in eval mode":
        model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, {"tokens": tokens, "segments": segments, "mask": mask}, spans, span_loss, optimizer)


# A decision transformer: returns, states and actions in turn; each action is told from what came before it.


class DecisionTransformer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.embed_return = nn.Linear(1, 32)
        self.embed_state = nn.Linear(7, 32)
        self.embed_action = nn.Embedding(9, 32)
        self.embed_time = nn.Embedding(12, 32)
        layers = [
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.layers = layers if bug == "layers in a list" else nn.ModuleList(layers)
        self.policy = nn.Linear(32, 9)
        self.bug = bug

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        batch, steps = actions.shape
        time = self.embed_time(torch.arange(steps))
        if self.bug == "returns not added":
            returns = torch.zeros_like(returns)
        parts = (self.embed_return(returns), self.embed_state(states), self.embed_action(actions))
        axis = 0 if self.bug == "parts stacked before the batch" else 2
        h = torch.stack([part + time for part in parts], axis).reshape(batch, 3 * steps, 32)
        mask = torch.ones(3 * steps, 3 * steps, dtype=torch.bool).triu(1)
        if self.bug == "mask over whole steps":
            step = torch.arange(3 * steps) // 3
            mask = step[None, :] > step[:, None]
        for layer in self.layers:
            h = layer(h, None if self.bug == "no mask" else mask)
        place = 2 if self.bug == "action read from its own token" else 1
        return self.policy(h[:, place::3])


@problem(
    "decision-transformer",
    "decision transformer",
    bug("no mask", "visible-answer", "actions", "layers.0"),
    bug("mask over whole steps", "visible-answer", "actions", "layers.0"),
    bug("action read from its own token", "visible-answer or shifted-targets", "actions"),
    bug("parts stacked before the batch", "mixed-samples", "reshape"),
    bug("returns not added", "idle-input", "returns", note=True),
    bug("layers in a list", "unregistered-parameters", "(96, 32)"),
    bug("policy not in the optimizer", "forgotten-parameters", "policy.weight"),
    part="second set",
)
def decision_transformer(bug: str) -> Case:
    model = DecisionTransformer(bug)
    returns, states = torch.randn(8, 12, 1), torch.randn(8, 12, 7)
    actions = torch.randint(0, 9, (8, 12))
    left_out = "policy" if bug == "policy not in the optimizer" else "none"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    inputs = {"returns": returns, "states": states, "actions": actions}
    return Case(model, inputs, actions.clone(), byte_loss, optimizer)
