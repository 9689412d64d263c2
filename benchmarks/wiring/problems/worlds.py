"""Acting and seeing: a model of a world, a clipped policy, distances from two cameras, a network that optimizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# A model of a world: a recurrent state, a prior without and a posterior with the observation.


class WorldModel(nn.Module):
    def __init__(self, bug: str, seen: int = 6, moves: int = 2, state: int = 24, code: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(seen, 32), nn.ELU())
        self.cell = nn.GRUCell(code + moves, state)
        self.prior = nn.Linear(state, 2 * code)
        self.posterior = nn.Linear(state + 32, 2 * code)
        self.decoder = nn.Sequential(nn.Linear(state + code, 32), nn.ELU(), nn.Linear(32, seen))
        self.reward = nn.Linear(state + code, 1)
        self.state, self.code = state, code
        self.bug = bug

    def forward(self, frames: Tensor, moves: Tensor) -> dict[str, Tensor]:
        n, steps, _ = frames.shape
        features = self.encoder(frames)
        if self.bug == "features regrouped by step":
            features = features.view(steps, n, -1).transpose(0, 1)
        h, z = frames.new_zeros(n, self.state), frames.new_zeros(n, self.code)
        outputs: dict[str, list[Tensor]] = {name: [] for name in ("frame", "reward", "kl")}
        for t in range(steps):
            move = torch.zeros_like(moves[:, t]) if self.bug == "moves zeroed" else moves[:, t]
            h = self.cell(torch.cat([z, move], 1), h)
            prior_mean, prior_width = self.prior(h).chunk(2, -1)
            mean, width = self.posterior(torch.cat([h, features[:, t]], 1)).chunk(2, -1)
            p = distributions.Normal(prior_mean, F.softplus(prior_width) + 0.1)
            q = distributions.Normal(mean, F.softplus(width) + 0.1)
            z = q.sample() if self.bug == "sample instead of rsample" else q.rsample()
            both = torch.cat([h, z], 1)
            outputs["frame"].append(self.decoder(both))
            outputs["reward"].append(self.reward(both).squeeze(-1))
            outputs["kl"].append(distributions.kl_divergence(q, p).sum(-1))
        if self.bug == "only the last frame decoded":
            outputs["frame"] = outputs["frame"][-1:]
        return {name: torch.stack(each, 1) for name, each in outputs.items()}


@problem(
    "world-model",
    "world model",
    bug("features regrouped by step", "mixed-samples", "encoder"),
    bug("moves zeroed", "idle-input", "moves", note=True),
    bug("sample instead of rsample", "blocked-path", "posterior"),
    bug("only the last frame decoded", "mixed-targets or shifted-targets"),
    bug("divergence subtracted", "negated-loss"),
    bug("reward not in the loss", "discarded-results or blocked-path", "reward"),
    bug("prior left out of the optimizer", "forgotten-parameters", "prior.weight"),
    part="fourth set",
)
def world_model(bug: str) -> Case:
    model = WorldModel(bug)
    moves = torch.randn(10, 8, 2)
    place = moves.cumsum(1) / 3
    frames = torch.cat([place, place.sin(), place.cos()], -1)
    rewards = -place.norm(dim=-1)

    def loss(out: dict[str, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        frames, rewards = targets
        total = (out["frame"] - frames).pow(2).sum(-1).mean()
        if bug != "reward not in the loss":
            total = total + (out["reward"] - rewards).pow(2).mean()
        kl = out["kl"].mean()
        return total - 0.1 * kl if bug == "divergence subtracted" else total + 0.1 * kl

    left_out = "prior" if bug == "prior left out of the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"frames": frames, "moves": moves}
    return Case(model, inputs, (frames, rewards), loss, torch.optim.Adam(trained, lr=1e-3))


# A policy with a clipped objective: continuous actions, a value beside them, advantages from the data.


class ClippedPolicy(nn.Module):
    def __init__(self, bug: str, seen: int = 5, moves: int = 2) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, moves)
        )
        self.critic = nn.Sequential(
            nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        )
        width = torch.full((moves,), -0.5)
        self.log_width = width.requires_grad_() if bug == "width is a plain tensor" else nn.Parameter(width)
        self.bug = bug

    def forward(self, seen: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = self.actor(seen)
        if self.bug == "observations normalized here":
            mean = self.actor((seen - seen.mean(0)) / seen.std(0))
        policy = distributions.Normal(mean, self.log_width.exp())
        log_probability = policy.log_prob(action).sum(-1)
        if self.bug == "probability from numpy":
            log_probability = torch.from_numpy(log_probability.detach().numpy())
        value = self.critic(seen)
        if self.bug != "values keep their column":
            value = value.squeeze(-1)
        return log_probability, policy.entropy().sum(-1), value


@problem(
    "clipped-policy",
    "policy optimization",
    bug("width is a plain tensor", "unregistered-parameters", "1"),
    bug("observations normalized here", "mixed-samples"),
    bug("probability from numpy", "blocked-path", "actor"),
    bug("values keep their column", "mixed-targets"),
    bug("advantage lost its minus", "negated-loss"),
    bug("returns not scaled", "targets-out-of-scale"),
    bug("optimizer has the critic only", "forgotten-parameters", "actor.0.weight"),
    part="fourth set",
)
def clipped_policy(bug: str) -> Case:
    model = ClippedPolicy(bug)
    seen = torch.randn(48, 5)
    with torch.no_grad():
        mean = model.actor(seen)
        policy = distributions.Normal(mean, model.log_width.exp())
        action = policy.sample()
        before = policy.log_prob(action).sum(-1) + 0.05 * torch.randn(48)
    reward = -(action - seen[:, :2]).pow(2).sum(-1)
    advantage = (reward - reward.mean()) / reward.std()
    returns = 2500 * reward if bug == "returns not scaled" else (reward - reward.mean()) / reward.std()

    def loss(out: tuple[Tensor, Tensor, Tensor], data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        log_probability, entropy, value = out
        before, advantage, returns = data
        ratio = (log_probability - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        policy_loss = gain.mean() if bug == "advantage lost its minus" else -gain.mean()
        return policy_loss + 0.5 * (value - returns).pow(2).mean() - 0.01 * entropy.mean()

    trained = model.critic.parameters() if bug == "optimizer has the critic only" else model.parameters()
    return Case(model, (seen, action), (before, advantage, returns), loss, torch.optim.Adam(trained, lr=1e-3))


# Distance from two cameras: costs of all shifts, and their expectation.


class Stereo(nn.Module):
    def __init__(self, bug: str, shifts: int = 6, wide: int = 12) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, wide, 3, padding=1),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1),
        )
        self.costs = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1))
        self.shifts = shifts
        self.bug = bug

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a = self.features(left)
        b = self.features(left if self.bug == "left camera twice" else right)
        match = torch.stack(
            [(a * F.pad(b, (s, 0))[..., : b.shape[-1]]).mean(1) for s in range(self.shifts)], 1
        )
        cost = match.unsqueeze(1)  # (pairs, 1, shifts, height, width)
        if self.bug == "refinement not used":
            self.costs(cost)
        elif self.bug == "shifts put before the pairs":
            cost = match.transpose(0, 1).reshape_as(match).unsqueeze(1)
            cost = cost + self.costs(cost)
        else:
            cost = cost + self.costs(cost)
        cost = cost.squeeze(1)
        axis = 0 if self.bug == "softmax over the pairs" else 1
        if self.bug == "best shift by argmax":
            return cost.argmax(1).float() + 0 * cost.sum(1)
        return (cost.softmax(axis) * torch.arange(self.shifts).view(1, -1, 1, 1)).sum(1)


@problem(
    "stereo",
    "stereo matching",
    bug("left camera twice", "idle-input", "right", note=True),
    bug("refinement not used", "discarded-results", "costs"),
    bug("shifts put before the pairs", "mixed-samples"),
    bug("softmax over the pairs", "mixed-samples", "softmax"),
    bug("best shift by argmax", "step-function or blocked-path"),
    bug("truth with a channel", "mixed-targets"),
    bug("validation mode kept", "evaluation-mode", "features.1"),
    part="fourth set",
)
def stereo(bug: str) -> Case:
    model = Stereo(bug)
    left = torch.randn(4, 1, 10, 20)
    shift = torch.randint(0, 6, (4,))
    right = torch.stack([torch.roll(one, -int(s), -1) for one, s in zip(left, shift, strict=True)])
    truth = shift.float().view(4, 1, 1).expand(4, 10, 20).contiguous()
    if bug == "truth with a channel":
        truth = truth.unsqueeze(1)
    if bug == "validation mode kept":
        model.eval()
    inputs = {"left": left, "right": right}
    return Case(model, inputs, truth, F.smooth_l1_loss, torch.optim.Adam(model.parameters(), lr=2e-3))


# A network that optimizes: its steps are taken on small quadratic problems, and the sum of their losses is its own.


class LearnedOptimizer(nn.Module):
    def __init__(self, bug: str, hidden: int = 16) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2, hidden)
        self.step = nn.Linear(hidden, 1)
        if bug == "steps start never written":
            self.step.weight = nn.Parameter(torch.empty(1, hidden))
        self.hidden = hidden
        self.bug = bug

    def forward(self, matrix: Tensor, goal: Tensor) -> Tensor:
        tasks, size = goal.shape
        x = torch.zeros(tasks, size)
        h = torch.zeros(tasks * size, self.hidden)
        c = torch.zeros(tasks * size, self.hidden)
        losses = []
        for _ in range(8):
            residual = torch.einsum("nij,nj->ni", matrix, x) - goal
            losses.append(residual.pow(2).mean(1))
            slope = torch.einsum("nij,ni->nj", matrix, residual).detach()
            if self.bug == "slope scaled by all tasks":
                slope = slope / slope.norm()
            scale = slope.abs().add(1e-3).log() / 5
            features = torch.stack([scale, slope.sign()], -1).reshape(tasks * size, 2)
            if self.bug == "slopes stacked, then viewed":
                features = torch.stack([scale, slope.sign()]).reshape(tasks * size, 2)
            h, c = self.cell(features, (h, c))
            moved = self.step(h).view(tasks, size)
            if self.bug == "steps in whole units":
                moved = moved.round()
            x = x + 0.3 * moved
        residual = torch.einsum("nij,nj->ni", matrix, x) - goal
        losses.append(residual.pow(2).mean(1))
        return torch.stack(losses, 1)


@problem(
    "learned-optimizer",
    "learned optimizer",
    bug("steps start never written", "uninitialized-memory", "step.weight"),
    bug("slope scaled by all tasks", "mixed-samples", "norm"),
    bug("slopes stacked, then viewed", "mixed-samples"),
    bug("steps in whole units", "step-function", "round"),
    bug("losses maximized", "negated-loss"),
    bug("step layer not in the optimizer", "forgotten-parameters", "step.weight"),
    part="fourth set",
)
def learned_optimizer(bug: str) -> Case:
    model = LearnedOptimizer(bug)
    matrix = torch.eye(5) + 0.3 * torch.randn(16, 5, 5)
    goal = torch.randn(16, 5)
    sign = -1 if bug == "losses maximized" else 1
    trained = model.cell.parameters() if bug == "step layer not in the optimizer" else model.parameters()
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    return Case(model, {"matrix": matrix, "goal": goal}, None, lambda losses: sign * losses.mean(), optimizer)
