"""Choosing: values of actions from a replay memory, a policy with its critic, tokens sent to experts."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Values of actions: a dueling network, one temporal-difference step on a batch of the memory.

GAMMA = 0.9


class DuelingDQN(nn.Module):
    def __init__(self, bug: str, n_observations: int = 4, n_actions: int = 3) -> None:
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(n_observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.advantage = nn.Linear(64, n_actions)
        self.value = nn.Linear(64, 1)
        self.bug = bug

    @torch.no_grad()
    def features_for_acting(self, state: Tensor) -> Tensor:
        return self.feature(state)

    def forward(self, state: Tensor) -> Tensor:
        if self.bug == "features of the acting method":
            x = self.features_for_acting(state)
        else:
            x = self.feature(state)
        advantage, value = self.advantage(x), self.value(x)
        if self.bug == "mean advantage without an axis":
            return value + advantage - advantage.mean()
        if self.bug == "advantages returned alone":
            return advantage - advantage.mean(1, keepdim=True)
        return value + advantage - advantage.mean(1, keepdim=True)


@problem(
    "dueling-dqn",
    "Q-learning",
    bug("columns of all actions taken", "mixed-targets"),
    bug("reward keeps its column", "mixed-targets"),
    bug("wrong side of the error detached", "swapped-arguments or blocked-path or discarded-results"),
    bug("mean advantage without an axis", "mixed-samples", "mean"),
    bug("advantages returned alone", "discarded-results", "value"),
    bug("features of the acting method", "blocked-path or head-only-gradient", "feature"),
    bug("optimizer that maximizes", "negated-loss or uphill-step"),
    bug("score of the game as the reward", "targets-out-of-scale"),
    part="sixth set",
)
def dueling_dqn(bug: str) -> Case:
    policy_net = DuelingDQN(bug)
    target_net = copy.deepcopy(policy_net)
    state = torch.randn(40, 4)
    action = torch.randint(0, 3, (40,))
    reward = torch.tanh(state[torch.arange(40), action])
    next_state = state + 0.1 * torch.randn(40, 4)
    done = (torch.rand(40) < 0.2).float()
    if bug == "score of the game as the reward":
        reward = 5_000 * reward
    if bug == "reward keeps its column":
        reward = reward.unsqueeze(1)

    def loss(q: Tensor, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        action, reward, next_state, done = batch
        if bug == "columns of all actions taken":
            chosen = q[:, action]
        else:
            chosen = q.gather(1, action.unsqueeze(1)).squeeze(1)
        if bug == "wrong side of the error detached":
            following = policy_net(next_state).max(1).values
            chosen = chosen.detach()
        else:
            following = target_net(next_state).max(1).values.detach()
        expected = reward + GAMMA * following * (1 - done)
        return F.mse_loss(chosen, expected)

    maximize = bug == "optimizer that maximizes"
    optimizer = torch.optim.Adam(policy_net.parameters(), lr=2e-3, maximize=maximize)
    return Case(policy_net, state, (action, reward, next_state, done), loss, optimizer)


# A policy with its critic: normal actions, advantages of the returns over the values.


class ActorCritic(nn.Module):
    def __init__(self, bug: str, obs_dim: int = 6, act_dim: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.actor = nn.Linear(48, act_dim)
        self.critic = nn.Linear(48, 1)
        if bug == "spread without nn.Parameter":
            self.log_std = torch.zeros(act_dim, requires_grad=True)
        else:
            self.log_std = nn.Parameter(torch.zeros(act_dim))
        self.bug = bug

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.bug == "buffer of the rollout never filled":
            obs = torch.zeros(obs.shape)
        x = self.body(obs)
        mu = self.actor(x)
        if self.bug == "full throttle or full brake":
            mu = torch.sign(mu)
        value = mu[:, :1] if self.bug == "value read from the actor" else self.critic(x)
        return mu, self.log_std.exp().expand_as(mu), value


@problem(
    "throttle-ppo",
    "policy gradient",
    bug("values keep their column", "mixed-targets"),
    bug("policy's loss without the minus", "negated-loss or unbounded-loss"),
    bug("critic in no group", "forgotten-parameters", "critic"),
    bug(
        "log-probabilities gathered with torch.tensor",
        "blocked-path or discarded-results or constant-loss-term",
    ),
    bug("full throttle or full brake", "step-function", "sign"),
    bug("value read from the actor", "idle-modules", "critic", note=True),
    bug("spread without nn.Parameter", "unregistered-parameters"),
    bug("buffer of the rollout never filled", "idle-input", "obs"),
    part="sixth set",
)
def throttle_ppo(bug: str) -> Case:
    ac = ActorCritic(bug)
    obs = torch.randn(40, 6)
    with torch.no_grad():
        mu, std, _ = ac(obs)
        actions = Normal(mu, std).sample()
        old_log_prob = Normal(mu, std).log_prob(actions).sum(-1)
    best = torch.stack([obs[:, 0], -obs[:, 1]], dim=1)
    returns = 1.0 - 0.5 * (actions - best).pow(2).sum(1) + 0.5 * obs[:, 2]
    returns = (returns - returns.mean()) / returns.std()

    def loss(out: tuple[Tensor, Tensor, Tensor], batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        mu, std, value = out
        actions, returns, old_log_prob = batch
        if bug != "values keep their column":
            value = value.squeeze(-1)
        log_prob = Normal(mu, std).log_prob(actions).sum(-1)
        if bug == "log-probabilities gathered with torch.tensor":
            log_prob = torch.tensor(list(log_prob), requires_grad=True)
        delta = returns - value
        advantage = delta.detach()
        ratio = torch.exp(log_prob - old_log_prob)
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        policy_loss = surrogate if bug == "policy's loss without the minus" else -surrogate
        entropy = Normal(mu, std).entropy().mean()
        return policy_loss + 0.5 * delta.pow(2).mean() - 0.01 * entropy

    batch = (actions, returns, old_log_prob)
    groups = [{"params": ac.parameters()}]
    if bug == "critic in no group":
        groups = [{"params": ac.body.parameters()}, {"params": [*ac.actor.parameters(), ac.log_std]}]
    return Case(ac, obs, batch, loss, torch.optim.Adam(groups, lr=1e-3))


# Tokens sent to experts: the best of four is chosen and weighted by the router.


class MoELayer(nn.Module):
    def __init__(self, bug: str, d: int, num_experts: int) -> None:
        super().__init__()
        if bug == "gate of a bare Tensor":
            self.w_gate = nn.Parameter(torch.Tensor(d, num_experts))
        else:
            self.w_gate = nn.Parameter(torch.randn(d, num_experts) / d**0.5)
        self.register_buffer("balance", torch.zeros(num_experts))
        if bug == "one expert under four numbers":
            expert = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, d))
            self.experts = nn.ModuleList([expert for _ in range(num_experts)])
        else:
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, d)) for _ in range(num_experts)]
            )
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.w_gate
        if self.bug == "full experts masked the wrong way":
            full = torch.tensor([True, False, False, False])
            logits = logits.masked_fill(~full, float("-inf"))
        if self.bug == "gates normalized over the tokens":
            gates = F.softmax(logits.t(), dim=-1).t()
        else:
            gates = F.softmax(logits, dim=-1)
        chosen = (gates.detach() + self.balance).argmax(dim=-1, keepdim=True)
        weight = gates.gather(1, chosen)
        if self.training:
            load = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(0)
            self.balance = self.balance + 1e-3 * torch.sign(load.mean() - load)
        if self.bug == "chosen expert not weighted":
            weight = torch.ones_like(weight)
        last = len(self.experts) - (self.bug == "range ends one expert early")
        if self.bug == "outputs joined in the order of the experts":
            parts = [self.experts[i](x[chosen[:, 0] == i]) for i in range(last)]
            return weight * torch.cat(parts)
        out = torch.zeros_like(x)
        for i in range(last):
            rows = (chosen[:, 0] == i).nonzero().flatten()
            y = weight[rows] * self.experts[i](x[rows])
            if self.bug == "added to a copy of the rows":
                out[rows].add_(y)
            else:
                out = out.index_add(0, rows, y)
        return out


class MoEClassifier(nn.Module):
    def __init__(self, bug: str, d: int = 24, num_experts: int = 4) -> None:
        super().__init__()
        self.proj = nn.Linear(12, d)
        self.moe = MoELayer(bug, d, num_experts)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        return self.head(self.norm(x + self.moe(x)))


@problem(
    "regime-experts",
    "mixture of experts",
    bug("chosen expert not weighted", "unlearned-router"),
    bug("full experts masked the wrong way", "collapsed-router"),
    bug("range ends one expert early", "idle-modules or collapsed-router", "experts.3", note=True),
    bug("gates normalized over the tokens", "mixed-samples", "softmax"),
    bug("one expert under four numbers", "repeated-module", "experts", note=True),
    bug("added to a copy of the rows", "discarded-results", "experts"),
    bug("outputs joined in the order of the experts", "mixed-samples"),
    bug("gate of a bare Tensor", "uninitialized-memory", "w_gate"),
    part="sixth set",
)
def regime_experts(bug: str) -> Case:
    model = MoEClassifier(bug)
    regime = torch.randint(0, 4, (64,))
    x = torch.randn(64, 12)
    x[:, :4] += 3 * F.one_hot(regime, 4)
    label = (x[:, 5:10].argmax(1) + regime) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return Case(model, x, label, nn.CrossEntropyLoss(), optimizer)
