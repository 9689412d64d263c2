"""Choosing: actions by value and by policy, experts, pairs of pictures and words, and a low-rank fine-tuning."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from benchmarks.wiring.problem import bug, problem
from benchmarks.wiring.problems.classifiers import digits
from leadline import Case

# Values of actions, with a slow copy for the goals; transitions are a dict.


class QStep(nn.Module):
    def __init__(self, bug: str, seen: int = 4, actions: int = 3) -> None:
        super().__init__()
        self.policy_net = nn.Sequential(
            nn.Linear(seen, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, actions)
        )
        self.target_net = copy.deepcopy(self.policy_net).requires_grad_(False)
        self.bug = bug

    def forward(
        self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        q = self.policy_net(state)
        if self.bug == "best value instead of the chosen":
            chosen = q.max(1).values
        elif self.bug == "columns indexed by the actions":
            chosen = q[:, action].mean(1)
        elif self.bug == "values read with item":
            chosen = torch.tensor(
                [row[a].item() for row, a in zip(q, action, strict=True)], requires_grad=True
            )
        else:
            chosen = q.gather(1, action.unsqueeze(1)).squeeze(1)
        if self.bug == "next state never read":
            next_state = state
        following = self.target_net(next_state).max(1).values
        alive = 1 - torch.zeros_like(done) if self.bug == "end of the episode ignored" else 1 - done
        if self.bug == "rewards keep their column":
            reward = reward.unsqueeze(1)
        goal = reward + 0.9 * alive * following
        return chosen, goal


@problem(
    "q-step",
    "reinforcement learning",
    bug("best value instead of the chosen", "idle-input", "action"),
    bug("columns indexed by the actions", "mixed-samples or mixed-targets"),
    bug("values read with item", "blocked-path"),
    bug("next state never read", "idle-input", "next_state", note=True),
    bug("end of the episode ignored", "idle-input", "done", note=True),
    bug("rewards keep their column", "mixed-targets or mixed-samples"),
    bug("rewards in thousands", "targets-out-of-scale"),
    bug("optimizer has the slow copy", "forgotten-parameters or foreign-optimizer"),
    bug("error of the values negated", "negated-loss"),
    part="fifth set",
)
def q_step(bug: str) -> Case:
    model = QStep(bug)
    state = torch.randn(64, 4)
    action = torch.randint(0, 3, (64,))
    next_state = state + 0.3 * (action - 1).unsqueeze(1) * torch.tensor([1.0, 0.0, -1.0, 0.5])
    reward = 1 - next_state.abs().sum(1) / 3
    if bug == "rewards in thousands":
        reward = 5000 * reward
    batch = {
        "state": state,
        "action": action,
        "reward": reward,
        "next_state": next_state,
        "done": (torch.rand(64) < 0.2).float(),
    }
    sign = -1 if bug == "error of the values negated" else 1
    trained = model.target_net if bug == "optimizer has the slow copy" else model.policy_net
    optimizer = torch.optim.RMSprop(trained.parameters(), lr=1e-3)
    return Case(model, batch, None, lambda out: sign * F.smooth_l1_loss(*out), optimizer)


# An actor and a critic on one trunk, with two optimizers.


class ActorCritic(nn.Module):
    def __init__(self, bug: str, seen: int = 6, actions: int = 4) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, actions))
        self.critic = nn.Sequential(nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, 1))
        self.bug = bug

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.actor(state)
        if self.bug == "probabilities over the batch":
            policy = Categorical(probs=scores.softmax(0))
        elif self.bug == "probabilities given as logits":
            policy = Categorical(logits=scores.softmax(-1))
        else:
            policy = Categorical(logits=scores)
        if self.bug == "likelihood of the best action":
            action = scores.argmax(-1)
        log_prob = policy.log_prob(action)
        if self.bug == "likelihoods gathered as numbers":
            log_prob = torch.tensor(log_prob.tolist(), requires_grad=True)
        value = self.critic(state)
        return (
            log_prob,
            policy.entropy(),
            value if self.bug == "value keeps its column" else value.squeeze(-1),
        )


@problem(
    "two-optimizers",
    "reinforcement learning",
    bug("probabilities over the batch", "mixed-samples", "softmax"),
    bug("probabilities given as logits", "squashed-logits or unnormalized-scores"),
    bug("likelihood of the best action", "idle-input", "action"),
    bug("likelihoods gathered as numbers", "blocked-path", "actor"),
    bug("value keeps its column", "mixed-targets"),
    bug("error of a detached value", "constant-loss-term or blocked-path or discarded-results"),
    bug("policy loss without its minus", "negated-loss"),
    bug("both optimizers have all parameters", "doubled-parameters"),
    bug("second optimizer has the actor again", "doubled-parameters or forgotten-parameters"),
    part="fifth set",
)
def two_optimizers(bug: str) -> Case:
    model = ActorCritic(bug)
    state = torch.randn(80, 6)
    action = torch.randint(0, 4, (80,))
    returns = 1.5 * (state[:, :4].argmax(1) == action).float() + 0.5 * state[:, 5]
    returns = (returns - returns.mean()) / returns.std()

    def loss(out: tuple[Tensor, Tensor, Tensor], returns: Tensor) -> Tensor:
        log_prob, entropy, value = out
        if bug == "error of a detached value":
            value = value.detach()
        advantage = (returns - value).detach()
        policy_loss = -(log_prob * advantage).mean()
        if bug == "policy loss without its minus":
            policy_loss = -policy_loss
        return policy_loss + 0.5 * (returns - value).pow(2).mean() - 0.05 * entropy.mean()

    first = model if bug == "both optimizers have all parameters" else model.actor
    second = model if bug == "both optimizers have all parameters" else model.critic
    if bug == "second optimizer has the actor again":
        second = model.actor
    optimizers = [torch.optim.Adam(part.parameters(), lr=3e-3) for part in (first, second)]
    return Case(model, (state, action), returns, loss, optimizers)


# Tokens sent to two of four experts; their loads are balanced by a second term.


class ExpertLayer(nn.Module):
    def __init__(self, bug: str, wide: int = 16, experts: int = 4) -> None:
        super().__init__()
        made = [nn.Sequential(nn.Linear(wide, 32), nn.ReLU(), nn.Linear(32, wide)) for _ in range(experts)]
        if bug == "one expert four times":
            made = [made[0]] * experts
        self.experts = made if bug == "experts in a list" else nn.ModuleList(made)
        self.router = nn.Linear(wide, experts)
        if bug == "router biased by a constant":
            nn.init.zeros_(self.router.weight)
            self.router.bias.data = torch.tensor([8.0, 4.0, -8.0, -8.0])
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x)
        p = scores.softmax(0 if self.bug == "router softmax over the tokens" else -1)
        best, index = p.topk(2, dim=-1)
        weight = best / best.sum(-1, keepdim=True)
        if self.bug == "router weights detached":
            weight = weight.detach()
        if self.bug == "experts weighted equally":
            weight = torch.full_like(weight, 0.5)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weight * (index == number)).sum(-1, keepdim=True)
            if self.bug == "sum of the experts overwritten":
                out = share * expert(x)
            elif self.bug == "returned inside the loop":
                return share * expert(x), p.mean(0).pow(2).sum() * 4
            else:
                out = out + share * expert(x)
        load = F.one_hot(index, 4).float().sum(1).mean(0) / 2
        importance = load if self.bug == "balance of the counts alone" else p.mean(0)
        return out, 4 * (load * importance).sum()


class TokenExperts(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.moe = ExpertLayer(bug)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = self.inside(tokens)
        mixed, balance = self.moe(self.norm(h))
        return self.head(h + mixed), balance


@problem(
    "token-experts",
    "mixture of experts",
    bug("router softmax over the tokens", "mixed-samples", "softmax"),
    bug("router weights detached", "unlearned-router", "router"),
    bug("experts weighted equally", "unlearned-router", "router"),
    bug("experts in a list", "unregistered-parameters"),
    bug("one expert four times", "repeated-module", "experts"),
    bug("router biased by a constant", "collapsed-router", "router"),
    bug("sum of the experts overwritten", "discarded-results", "experts.0"),
    bug("returned inside the loop", "idle-modules", "experts.1"),
    bug("balance of the counts alone", "constant-loss-term or unbalanced-router"),
    bug("balance not added", "unbalanced-router", note=True),
    part="fifth set",
)
def token_experts(bug: str) -> Case:
    model = TokenExperts(bug)
    kind = torch.randint(0, 4, (120,))
    tokens = 1.5 * F.one_hot(kind, 8).float() + 0.7 * torch.randn(120, 8)
    # Each kind of token has its own rule.
    rules = torch.randn(4, 4, 3)
    labels = torch.einsum("ni,nij->nj", tokens[:, 4:], rules[kind]).argmax(1)
    portion = 0.0 if bug == "balance not added" else 0.02

    def loss(out: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        scores, balance = out
        total = F.cross_entropy(scores, labels)
        return total + portion * balance if portion else total

    return Case(model, tokens, labels, loss, torch.optim.AdamW(model.parameters(), lr=5e-3))


# Pictures and their sentences, brought together by a contrastive loss.


class PictureText(nn.Module):
    def __init__(self, bug: str, wide: int = 24) -> None:
        super().__init__()
        self.image_encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, wide)
        )
        self.word_embedding = nn.Embedding(40, wide, padding_idx=0)
        self.text_encoder = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide))
        self.image_projection = nn.Linear(wide, wide)
        self.text_projection = nn.Linear(wide, wide)
        scale = torch.tensor(1.6)
        self.logit_scale = scale.requires_grad_() if bug == "scale is a plain tensor" else nn.Parameter(scale)
        self.bug = bug

    def forward(self, image: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        a = self.image_encoder(image)
        words = self.text_encoder(self.word_embedding(tokens))
        if self.bug == "sentences averaged with their padding":
            b = words.mean(1)
        else:
            b = (words * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        a = self.image_projection(a)
        if self.bug == "projection of the pictures for both":
            b = self.image_projection(b)
        else:
            b = self.text_projection(b)
        if self.bug == "pictures without a gradient":
            a = a.detach()
        if self.bug == "pictures compared with themselves":
            b = a
        dim = 0 if self.bug == "normalized over the batch" else 1
        a, b = F.normalize(a, dim=dim), F.normalize(b, dim=dim)
        logits = self.logit_scale.exp() * a @ b.t()
        return logits.softmax(1) if self.bug == "softmax before cross entropy" else logits


@problem(
    "picture-text",
    "contrastive learning",
    bug("scale is a plain tensor", "unregistered-parameters"),
    bug("sentences averaged with their padding", "unmasked-padding or idle-input"),
    bug("projection of the pictures for both", "idle-modules", "text_projection"),
    bug("pictures without a gradient", "blocked-path", "image_encoder"),
    bug("pictures compared with themselves", "idle-input or discarded-results"),
    bug("normalized over the batch", "mixed-samples"),
    bug("softmax before cross entropy", "squashed-logits", "softmax"),
    bug("pairs are all number zero", "single-answer", "100 %"),
    bug("similarity minimized", "negated-loss"),
    bug("text side not in the optimizer", "forgotten-parameters", "text_encoder"),
    part="fifth set",
)
def picture_text(bug: str) -> Case:
    model = PictureText(bug)
    image, label = digits(20)
    length = torch.randint(3, 8, (20, 1))
    mask = (torch.arange(8) < length).float()
    # The sentence names the digit and how bright the picture is.
    bright = (image.mean((1, 2, 3)) * 40).long().clamp(0, 19)
    tokens = torch.randint(31, 40, (20, 8))
    tokens[:, 0], tokens[:, 1] = 1 + label, 11 + bright
    tokens = tokens * mask.long()
    pairs = torch.zeros(20, dtype=torch.long) if bug == "pairs are all number zero" else torch.arange(20)
    sign = -1 if bug == "similarity minimized" else 1

    def loss(logits: Tensor, pairs: Tensor) -> Tensor:
        return sign * (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.t(), pairs)) / 2

    skipped = ("text", "word") if bug == "text side not in the optimizer" else ("nothing",)
    trained = [each for name, each in model.named_parameters() if not name.startswith(skipped)]
    inputs = {"image": image, "tokens": tokens, "mask": mask}
    return Case(model, inputs, pairs, loss, torch.optim.Adam(trained, lr=2e-3))


# A network trained on digits learns to read their mirror images with low-rank additions.


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, bug: str, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        a, b = (
            torch.randn(rank, base.in_features) / base.in_features**0.5,
            torch.zeros(base.out_features, rank),
        )
        if bug == "both factors start at zero":
            a = torch.zeros_like(a)
        if bug == "factors are plain tensors":
            self.lora_a, self.lora_b = a.requires_grad_(), b.requires_grad_()
        else:
            self.lora_a, self.lora_b = nn.Parameter(a), nn.Parameter(b)
        self.scale = 1000 * alpha if bug == "scale of thousands" else alpha / rank
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out = self.base(x)
        low = x @ self.lora_a.t() @ self.lora_b.t() * self.scale
        if self.bug == "addition detached":
            low = low.detach()
        return out if self.bug == "addition not added" else out + low


def add_lora(model: nn.Sequential, bug: str) -> nn.Sequential:
    layers = [LoRALinear(each, bug) if isinstance(each, nn.Linear) else each for each in model]
    return nn.Sequential(*layers[:-1], nn.Linear(64, 10))


@problem(
    "mirror-lora",
    "low-rank fine-tuning",
    bug("both factors start at zero", "stuck-zeros", "lora"),
    bug("factors are plain tensors", "unregistered-parameters"),
    bug("addition not added", "discarded-results", "lora"),
    bug("addition detached", "blocked-path", "lora"),
    bug("scale of thousands", "adapter-overwrites or step-too-long or overwriting-step"),
    bug("trained weights never loaded", "frozen-random-weights"),
    bug("additions frozen with the rest", "frozen-random-weights or head-only-gradient or frozen-matrices"),
    bug("optimizer built before the additions", "forgotten-parameters or foreign-optimizer", "lora"),
    bug("rate of 1e-8 for the additions", "faint-adapter or crawling-step"),
    part="fifth set",
)
def mirror_lora(bug: str) -> Case:
    images, labels = digits(400)
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    teaching = torch.optim.Adam(base.parameters(), lr=5e-3)
    for _ in range(0 if bug == "trained weights never loaded" else 60):
        teaching.zero_grad()
        F.cross_entropy(base(images), labels).backward()
        teaching.step()
    model = add_lora(base, bug)
    if bug == "additions frozen with the rest":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("5"))
    trained = [each for each in model.parameters() if each.requires_grad]
    if bug == "optimizer built before the additions":
        trained = list(model[-1].parameters())
    rate = 1e-8 if bug == "rate of 1e-8 for the additions" else 3e-3
    mirrored = images[:64].flip(-1)
    return Case(model, mirrored, labels[:64], nn.CrossEntropyLoss(), torch.optim.AdamW(trained, lr=rate))
