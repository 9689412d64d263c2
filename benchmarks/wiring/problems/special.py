"""Adapters, experts, agents and networks with discrete parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Low-rank adapters with raw parameters on a frozen, trained base.


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, bug: str, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        a, b = torch.randn(rank, base.in_features) / rank**0.5, torch.zeros(base.out_features, rank)
        if bug == "both factors start at zero":
            a = torch.zeros_like(a)
        if bug == "factors are plain tensors":
            self.lora_A, self.lora_B = a.requires_grad_(), b.requires_grad_()
        else:
            self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        delta = x @ self.lora_A.t() @ self.lora_B.t()
        if self.bug == "adapter added to nothing":
            return self.base(x)
        if self.bug == "adapter centered over the batch":
            delta = delta + (x @ self.lora_A.t()).mean(0).sum()
        return self.base(x) + 2.0 * delta


def trained_base(features: Tensor, labels: Tensor) -> nn.Sequential:
    """A small network after a short training, as a pretrained base is."""
    base = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(base.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(base(features), labels).backward()
        optimizer.step()
    base.zero_grad()
    return base


@problem(
    "lora",
    "adapters",
    bug("both factors start at zero", "motionless-step", "exactly 0"),
    bug("factors are plain tensors", "unregistered-parameters", "(4, 12)"),
    bug("adapter added to nothing", "discarded-results or blocked-path", "lora_A"),
    bug("adapter centered over the batch", "mixed-samples", "mean"),
    bug("optimizer got the base instead", "forgotten-parameters", "lora_A"),
)
def lora(bug: str) -> Case:
    features, labels = torch.randn(40, 12), torch.randint(0, 5, (40,))
    base = trained_base(features, labels)
    first, last = base[0], base[2]
    base[0] = LoRALinear(first, bug)
    base[2] = LoRALinear(last, "" if bug == "adapter added to nothing" else bug)
    base[4].requires_grad_(bug == "factors are plain tensors")
    trained = [each for each in base.parameters() if each.requires_grad]
    if bug == "optimizer got the base instead":
        trained = [each for each in base.parameters() if not each.requires_grad]
    new_labels = (labels + torch.randint(0, 2, labels.shape)) % 5
    return Case(base, features, new_labels, F.cross_entropy, torch.optim.AdamW(trained, lr=1e-2))


# Adapters beside the blocks of a frozen language model.


class AdapterLM(nn.Module):
    def __init__(self, bug: str, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(33, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 33)
        adapters = [nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, width)) for _ in range(2)]
        self.adapters = adapters if bug == "adapters in a list" else nn.ModuleList(adapters)
        self.bug = bug

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        if self.bug == "hidden states reversed in time":
            h = h.flip(1)
        h, _ = self.rnn(h)
        for adapter in self.adapters:
            if self.bug == "adapters overwrite each other":
                y = h + adapter(h)
            else:
                y = h = h + adapter(h)
        return self.head(y)


def train_next(model: nn.Module, ids: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:]).backward()
        optimizer.step()
    model.zero_grad()


@problem(
    "adapter-lm",
    "adapters",
    bug("adapters in a list", "unregistered-parameters", "8"),
    bug("hidden states reversed in time", "visible-answer", "rnn"),
    bug("adapters overwrite each other", "discarded-results", "adapters.0"),
    bug("labels two ahead", "shifted-targets", "2 positions"),
)
def adapter_lm(bug: str) -> Case:
    model = AdapterLM("" if bug != "adapters in a list" else bug)
    ids = torch.randint(0, 33, (6, 18))
    train_next(model, ids)
    model.bug = bug
    for part in (model.embed, model.rnn):
        part.requires_grad_(False)
    ahead = 2 if bug == "labels two ahead" else 1
    x, y = ids[:, :16].clone(), ids[:, ahead : ahead + 16].clone()
    trained = [each for each in model.parameters() if each.requires_grad]
    return Case(model, x, y, lambda s, t: F.cross_entropy(s.transpose(1, 2), t), torch.optim.Adam(trained))


# A mixture of experts.


class MoE(nn.Module):
    def __init__(self, bug: str, dim: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        parts = [nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim)) for _ in range(experts)]
        self.experts = parts if bug == "experts in a list" else nn.ModuleList(parts)
        if bug == "router collapsed":
            nn.init.constant_(self.router.bias[:1], 50.0)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.router(x), dim=0 if self.bug == "gates over the tokens" else -1)
        weight, chosen = gates.topk(2, dim=-1)
        y = torch.zeros_like(x)
        for index in range(len(self.experts)):
            expert = self.experts[0 if self.bug == "always the first expert" else index]
            rows, slot = torch.where(chosen == index)
            if len(rows) == 0:
                continue
            scale = weight[rows, slot].unsqueeze(1)
            if self.bug == "gate not multiplied":
                scale = torch.full_like(scale, 0.5)
            y = y.index_add(0, rows, scale * expert(x[rows]))
        return y


class MoEClassifier(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.inp = nn.Linear(10, 16)
        self.moe = MoE(bug)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        return self.out(self.norm(h + self.moe(h)))


@problem(
    "moe",
    "mixture of experts",
    bug("experts in a list", "unregistered-parameters", "(24, 16)"),
    bug("gates over the tokens", "mixed-samples", "softmax"),
    bug("always the first expert", "idle-modules", "moe.experts.0", "moe.experts.1"),
    bug("gate not multiplied", "unlearned-router or blocked-path", "moe.router"),
    bug("router collapsed", "collapsed-router", "router"),
    bug("router not in the optimizer", "forgotten-parameters", "moe.router.weight"),
)
def moe(bug: str) -> Case:
    model = MoEClassifier(bug)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "router not in the optimizer" or "router" not in name
    ]
    x, y = torch.randn(64, 10), torch.randint(0, 3, (64,))
    return Case(model, x, y, F.cross_entropy, torch.optim.Adam(trained, lr=1e-3))


# A value network that learns from a target network.


class QNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(4, 32)
        self.layer2 = nn.Linear(32, 32)
        self.layer3 = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


class Agent(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.policy_net = QNet()
        self.target_net = QNet()
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.target_net.requires_grad_(False)
        self.bug = bug

    def forward(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> Tensor:
        q = self.policy_net(state).gather(1, action)
        if self.bug == "values detached":
            q = q.detach() + 0 * self.policy_net.layer3.bias.sum()
        with torch.no_grad():
            value = self.target_net(next_state).max(1).values
        expected = reward + 0.99 * value
        if self.bug == "column of values against a vector":
            return F.smooth_l1_loss(q, expected)
        loss = F.smooth_l1_loss(q.squeeze(1), expected)
        return -loss if self.bug == "error maximized" else loss


@problem(
    "dqn",
    "reinforcement learning",
    bug("column of values against a vector", "mixed-targets", "(32, 1)", "(32,)"),
    bug("values detached", "blocked-path", "detach"),
    bug("rewards in thousands", "targets-out-of-scale"),
    bug("error maximized", "negated-loss"),
    bug("optimizer got the target network", "forgotten-parameters", "policy_net.layer1.weight"),
)
def dqn(bug: str) -> Case:
    agent = Agent(bug)
    reward = torch.rand(32) * (5_000 if bug == "rewards in thousands" else 1)
    batch = {
        "state": torch.randn(32, 4),
        "action": torch.randint(0, 2, (32, 1)),
        "reward": reward,
        "next_state": torch.randn(32, 4),
    }
    net = agent.target_net if bug == "optimizer got the target network" else agent.policy_net
    return Case(agent, batch, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-4))


# An actor and a critic on one trunk.


class ActorCritic(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.affine = nn.Linear(6, 32)
        self.action_head = nn.Linear(32, 3)
        self.value_head = nn.Linear(32, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.affine(x))
        probabilities = F.softmax(self.action_head(x), dim=0 if self.bug == "softmax over the states" else -1)
        return probabilities, self.value_head(x)


@problem(
    "actor-critic",
    "reinforcement learning",
    bug("softmax over the states", "mixed-samples", "softmax"),
    bug("values keep their column", "mixed-targets", "(24, 1)", "(24,)"),
    bug("advantages broadcast", "mixed-targets"),
    bug("value head not in the optimizer", "forgotten-parameters", "value_head.weight"),
)
def actor_critic(bug: str) -> Case:
    model = ActorCritic(bug)
    actions, returns = torch.randint(0, 3, (24,)), torch.randn(24)

    def loss(output: tuple[Tensor, Tensor], returns: Tensor) -> Tensor:
        probabilities, values = output
        value = values if bug == "values keep their column" else values.squeeze(1)
        advantage = returns - values.squeeze(1).detach()
        log_prob = probabilities.gather(1, actions.unsqueeze(1)).log()
        if bug != "advantages broadcast":
            log_prob = log_prob.squeeze(1)
        return -(log_prob * advantage).mean() + F.smooth_l1_loss(value, returns)

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "value head not in the optimizer" or not name.startswith("value_head")
    ]
    return Case(model, torch.randn(24, 6), returns, loss, torch.optim.Adam(trained, lr=3e-3))


# Networks with discrete parts.


class Binarized(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(32, 32)
        self.c = nn.Linear(32, 4)
        self.bug = bug

    def discrete(self, x: Tensor) -> Tensor:
        if self.bug == "sign without an estimator":
            return torch.sign(x)
        if self.bug == "threshold":
            return (x > 0).float()
        if self.bug == "floor of the activations":
            return torch.floor(4 * x) / 4
        hard = torch.sign(x)
        return x + (hard - x).detach()

    def forward(self, x: Tensor) -> Tensor:
        h = self.discrete(torch.tanh(self.a(x)))
        h = torch.relu(self.b(h))
        if self.bug == "one number through item()":
            h = h / h.norm(dim=1, keepdim=True).max().item()
            return self.c(torch.stack([torch.tensor(row) for row in h.tolist()]))
        return self.c(h)


@problem(
    "binarized",
    "quantized",
    bug("sign without an estimator", "step-function", "sign"),
    bug("threshold", "blocked-path", "a.weight"),
    bug("floor of the activations", "step-function", "floor"),
    bug("one number through item()", "blocked-path", "b.weight"),
)
def binarized(bug: str) -> Case:
    model = Binarized(bug)
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))
    return Case(model, x, y, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


class VectorQuantizer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 8))
        self.codes = nn.Embedding(12, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 20))
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        nearest = torch.cdist(z, self.codes.weight).argmin(1)
        q = self.codes(nearest)
        commit = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        if self.bug == "no straight-through estimator":
            return self.decoder(q), F.mse_loss(q, z.detach())
        q = z + (q - z).detach()
        if self.bug == "codes averaged over the batch":
            q = q + q.mean(0)
        return self.decoder(q), commit


@problem(
    "vq-vae",
    "quantized",
    bug("no straight-through estimator", "blocked-path", "encoder"),
    bug("codes averaged over the batch", "mixed-samples", "mean"),
    bug("targets in other units", "targets-out-of-scale"),
    bug("decoder not in the optimizer", "forgotten-parameters", "decoder.0.weight"),
)
def vq_vae(bug: str) -> Case:
    model = VectorQuantizer(bug)
    x = torch.randn(26, 20)
    wanted = 1000 * x if bug == "targets in other units" else x.clone()
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "decoder not in the optimizer" or not name.startswith("decoder")
    ]
    return Case(
        model,
        x,
        wanted,
        lambda output, wanted: F.mse_loss(output[0], wanted) + output[1],
        torch.optim.Adam(trained, lr=1e-3),
    )
