"""Second set: points, event times, equations, densities, key points and two tasks at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Point clouds in the manner of PointNet: one network for all points, a maximum over them.


class PointNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.tnet = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 9))
        convs = [nn.Conv1d(3, 24, 1), nn.Conv1d(24, 40, 1)]
        self.convs = convs if bug == "point layers in a list" else nn.ModuleList(convs)
        self.bn = nn.BatchNorm1d(40)
        self.head = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 5))
        self.bug = bug

    def forward(self, points: Tensor) -> Tensor:
        if self.bug == "clouds centered by the mean of the batch":
            points = points - points.mean((0, 1))
        else:
            points = points - points.mean(1, keepdim=True)
        with torch.set_grad_enabled(self.bug != "alignment under no_grad"):
            align = self.tnet(points).mean(1).view(-1, 3, 3) + torch.eye(3)
        x = torch.bmm(points, align).transpose(1, 2)
        for conv in self.convs:
            x = F.relu(conv(x))
        x = self.head(self.bn(x).max(2).values)
        return x.softmax(1) if self.bug == "softmax inside the network" else x


@problem(
    "point-cloud",
    "point clouds",
    bug("clouds centered by the mean of the batch", "mixed-samples", "mean"),
    bug("alignment under no_grad", "blocked-path", "tnet"),
    bug("point layers in a list", "unregistered-parameters", "(24, 3, 1)"),
    bug("softmax inside the network", "squashed-logits", "softmax"),
    bug("head not in the optimizer", "forgotten-parameters", "head.3.weight"),
    part="second set",
)
def point_cloud(bug: str) -> Case:
    model = PointNet(bug)
    clouds, shapes = torch.randn(20, 32, 3), torch.randint(0, 5, (20,))
    clouds = clouds * (1 + shapes[:, None, None]) + shapes[:, None, None]
    left_out = "head" if bug == "head not in the optimizer" else "none"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, clouds, shapes, F.cross_entropy, torch.optim.Adam(trained, lr=1e-3))


# Event times with Cox's partial likelihood, which compares the patients of a batch on purpose.


class RiskNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.SELU(), nn.Linear(32, 32), nn.SELU())
        self.risk = nn.Linear(32, 1, bias=False)
        self.bug = bug

    def forward(self, covariates: Tensor) -> Tensor:
        if self.bug == "covariates scaled by the norm over the patients":
            covariates = covariates / covariates.norm(dim=0)
        risk = self.risk(self.body(covariates))
        return risk if self.bug == "risk keeps its column" else risk.squeeze(1)


def cox(risk: Tensor, events: Tensor) -> Tensor:
    """Patients are sorted by time, the latest first."""
    return -((risk - risk.logcumsumexp(0)) * events).sum() / events.sum()


@problem(
    "survival",
    "survival analysis",
    bug("covariates scaled by the norm over the patients", "mixed-samples", "norm"),
    bug("risk keeps its column", "mixed-targets", "(32, 1)", "(32,)"),
    bug("partial likelihood minimized", "negated-loss"),
    bug("no event in the batch", "single-answer or non-finite"),
    bug("risk layer not in the optimizer", "forgotten-parameters", "risk.weight"),
    part="second set",
)
def survival(bug: str) -> Case:
    model = RiskNet(bug)
    covariates = torch.randn(32, 10)
    events = (torch.rand(32) < 0.6).float()
    if bug == "no event in the batch":
        events = torch.zeros(32)
    loss = (lambda risk, e: -cox(risk, e)) if bug == "partial likelihood minimized" else cox
    trained = model.body if bug == "risk layer not in the optimizer" else model
    return Case(model, covariates, events, loss, torch.optim.AdamW(trained.parameters(), lr=1e-3))


# A physics-informed network: u(x, t) must satisfy the heat equation and its values at the start.


class HeatNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.first = nn.Linear(2, 32)
        hidden = [nn.Linear(32, 32) for _ in range(2)]
        self.hidden = tuple(hidden) if bug == "layers in a tuple" else nn.ModuleList(hidden)
        self.last = nn.Linear(32, 1)
        self.bug = bug

    def u(self, x: Tensor, t: Tensor) -> Tensor:
        if self.bug == "time multiplied by zero":
            t = 0 * t
        h = torch.tanh(self.first(torch.cat([x, t], 1)))
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.last(h)

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
        value = self.u(x, t)
        graph = self.bug != "derivatives without create_graph"
        u_t, u_x = torch.autograd.grad(value.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=graph, retain_graph=True)
        residual = (u_t if graph else u_t.detach()) - 0.1 * u_xx
        return value, residual


def heat_loss(output: tuple[Tensor, Tensor], start: Tensor) -> Tensor:
    value, residual = output
    return (residual**2).mean() + ((value - start) ** 2).mean()


@problem(
    "heat-equation",
    "physics-informed",
    bug("derivatives without create_graph", "blocked-path"),
    bug("start values as a vector", "mixed-targets", "(24, 1)", "(24,)"),
    bug("time multiplied by zero", "idle-input", "t", note=True),
    bug("layers in a tuple", "unregistered-parameters", "(32, 32)"),
    bug("equation maximized", "negated-loss"),
    part="second set",
)
def heat_equation(bug: str) -> Case:
    model = HeatNet(bug)
    x, t = torch.rand(24, 1), torch.rand(24, 1)
    start = torch.sin(math.pi * x)
    if bug == "start values as a vector":
        start = start.squeeze(1)
    loss = (lambda output, y: -heat_loss(output, y)) if bug == "equation maximized" else heat_loss
    return Case(model, (x, t), start, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


# A normalizing flow: the data's likelihood under affine couplings, without targets.


class Coupling(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 3), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 3))
        self.bug = bug

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = z.chunk(2, 1)
        s = self.scale(kept)
        if self.bug == "scale through a list":
            s = torch.tensor(s.tolist())
        moved = moved * s.exp() + self.shift(kept)
        determinant = s.sum() if self.bug == "determinants summed over the batch" else s.sum(1)
        return torch.cat([moved, kept], 1), determinant


class Flow(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        layers = [Coupling(bug) for _ in range(4)]
        self.layers = layers if bug == "couplings in a list" else nn.ModuleList(layers)
        self.center = nn.Parameter(torch.zeros(6))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.center
        z, determinant = x, torch.zeros(len(x))
        for layer in self.layers:
            z, added = layer(x if self.bug == "every coupling gets the data" else z)
            determinant = determinant + added
        return determinant - 0.5 * (z**2).sum(1) - 3 * math.log(2 * math.pi)


@problem(
    "flow",
    "normalizing flow",
    bug("determinants summed over the batch", "mixed-samples", "sum"),
    bug("every coupling gets the data", "discarded-results", "layers.0"),
    bug("scale through a list", "blocked-path", "scale"),
    bug("couplings in a list", "unregistered-parameters", "32"),
    bug("shifts not in the optimizer", "forgotten-parameters", "layers.0.shift.0.weight"),
    part="second set",
)
def flow(bug: str) -> Case:
    model = Flow(bug)
    data = torch.randn(28, 6) @ torch.randn(6, 6) / 6**0.5
    left_out = "shift" if bug == "shifts not in the optimizer" else "none"
    trained = [each for name, each in model.named_parameters() if left_out not in name]
    return Case(model, data, None, lambda likelihood: -likelihood.mean(), torch.optim.Adam(trained, lr=1e-3))


# Key points of a picture: heat maps, and the mean position under each.


class PoseNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.heat = nn.Conv2d(12, 6, 1)
        self.register_buffer("axis", torch.linspace(-1, 1, 8))
        self.bug = bug

    def forward(self, images: Tensor) -> Tensor:
        heat = self.heat(F.relu(self.up(self.down(images))))
        batch, points, rows, columns = heat.shape
        if self.bug == "maps regrouped without a transpose":
            heat = heat.transpose(0, 1)
        flat = heat.reshape(batch, points, rows * columns)
        if self.bug == "position of the maximum":
            best = flat.argmax(2)
            return torch.stack([self.axis[best % columns], self.axis[best // columns]], 2)
        weight = flat.softmax(0 if self.bug == "softmax over the pictures" else 2)
        weight = weight.view(batch, points, rows, columns)
        return torch.stack([weight.sum(2) @ self.axis, weight.sum(3) @ self.axis], 2)


@problem(
    "pose",
    "key points",
    bug("softmax over the pictures", "mixed-samples", "softmax"),
    bug("position of the maximum", "blocked-path or step-function", "argmax"),
    bug("maps regrouped without a transpose", "mixed-samples", "reshape"),
    bug("points in pixels of the photograph", "targets-out-of-scale"),
    bug("up-sampling not in the optimizer", "forgotten-parameters", "up.weight"),
    part="second set",
)
def pose(bug: str) -> Case:
    model = PoseNet(bug)
    images, points = torch.randn(9, 3, 16, 16), torch.rand(9, 6, 2) * 1.6 - 0.8
    if bug == "points in pixels of the photograph":
        points = 540 * (points + 1)
    left_out = "up." if bug == "up-sampling not in the optimizer" else "none"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, images, points, F.smooth_l1_loss, torch.optim.Adam(trained, lr=1e-3))


# Two tasks with one trunk: what a customer spends, and what kind of customer it is.


class TwoTasks(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(14, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.spend = nn.Linear(32, 1)
        self.kind = nn.Linear(32, 4)
        self.bug = bug

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        if self.bug == "both heads on detached features":
            h = h.detach()
        spend = self.spend(h)
        return {
            "spend": spend if self.bug == "spending keeps its column" else spend[:, 0],
            "kind": self.kind(h),
        }


def both_losses(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    error = F.mse_loss(output["spend"], targets["spend"])
    return error + F.cross_entropy(output["kind"], targets["kind"])


def only_spending(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    F.cross_entropy(output["kind"], targets["kind"])
    return F.mse_loss(output["spend"], targets["spend"])


@problem(
    "two-tasks",
    "several tasks",
    bug("spending keeps its column", "mixed-targets", "(26, 1)", "(26,)"),
    bug("both heads on detached features", "blocked-path", "trunk"),
    bug("second loss not added", "discarded-results or blocked-path or idle-modules", "kind", note=True),
    bug("trunk in both optimizers", "doubled-parameters or forgotten-parameters", "trunk.0.weight"),
    bug("kind head in no optimizer", "forgotten-parameters", "kind.weight"),
    bug("everybody is of one kind", "single-answer", "100 %"),
    part="second set",
)
def two_tasks(bug: str) -> Case:
    model = TwoTasks(bug)
    x = torch.randn(26, 14)
    kinds = torch.zeros(26, dtype=torch.long) if bug == "everybody is of one kind" else torch.arange(26) % 4
    targets = {"spend": torch.randn(26), "kind": kinds}
    loss = only_spending if bug == "second loss not added" else both_losses
    first = [*model.trunk.parameters(), *model.spend.parameters()]
    second = [] if bug == "kind head in no optimizer" else [*model.kind.parameters()]
    if bug == "trunk in both optimizers":
        second += model.trunk.parameters()
    optimizers = [torch.optim.AdamW(each, lr=1e-3) for each in (first, second) if each]
    return Case(model, x, targets, loss, optimizers)
