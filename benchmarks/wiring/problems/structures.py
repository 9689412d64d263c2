"""Sets, links, orders, episodes and generated weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Sets of different sizes, padded, and attention to learned seeds.


class SetRegressor(nn.Module):
    def __init__(self, bug: str, width: int = 64) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width))
        self.seeds = nn.Parameter(torch.randn(2, width))
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.rho = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        if bug == "attention not scaled":
            nn.init.normal_(self.query.weight, std=width**-0.5)
            nn.init.normal_(self.key.weight, std=width**-0.5)
            self.phi.append(nn.LayerNorm(width))
        self.bug = bug

    def forward(self, elements: Tensor, present: Tensor) -> Tensor:
        h = self.phi(elements)
        if self.bug == "centered by all sets":
            h = h - h.mean((0, 1))
        scores = self.query(self.seeds) @ self.key(h).transpose(1, 2)
        if self.bug != "attention not scaled":
            scores = scores / h.shape[-1] ** 0.5
        if self.bug != "absent elements attended":
            scores = scores.masked_fill(~present[:, None, :], float("-inf"))
        pooled = scores.softmax(-1) @ self.value(h)
        if self.bug == "pooled through lists":
            pooled = torch.tensor(pooled.tolist())
        return self.rho(pooled.flatten(1))


@problem(
    "sets",
    "sets",
    bug("absent elements attended", "unmasked-padding", "elements"),
    bug("centered by all sets", "mixed-samples", "mean"),
    bug("attention not scaled", "unscaled-attention"),
    bug("pooled through lists", "blocked-path", "value"),
    bug("answers as a vector", "mixed-targets", "(18, 1)", "(18,)"),
    bug("keys not in the optimizer", "forgotten-parameters", "key.weight"),
    part="third set",
)
def sets(bug: str) -> Case:
    model = SetRegressor(bug)
    sizes = torch.randint(3, 10, (18, 1))
    sizes[0] = 9
    present = torch.arange(9) < sizes
    elements = torch.randn(18, 9, 5) * present[..., None]
    answers = elements.sum((1, 2)).unsqueeze(1) / 5
    if bug == "answers as a vector":
        answers = answers.squeeze(1)
    left_out = "key" if bug == "keys not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        {"elements": elements, "present": present},
        answers,
        nn.SmoothL1Loss(),
        torch.optim.AdamW(trained, lr=1e-3),
    )


# Links of a graph: messages along edges, then a score per pair of nodes.


class LinkPredictor(nn.Module):
    def __init__(self, bug: str, width: int = 24) -> None:
        super().__init__()
        self.features = nn.Linear(7, width)
        relations = [nn.Linear(width, width, bias=False) for _ in range(2)]
        self.relations = relations if bug == "rounds in a list" else nn.ModuleList(relations)
        self.decoder = nn.Bilinear(width, width, 1)
        self.bug = bug

    def forward(self, nodes: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        h = self.features(nodes)
        for relation in self.relations:
            if self.bug == "messages not sent":
                h = F.relu(h + relation(h))
                continue
            messages = relation(h)[edges[0]]
            received = torch.zeros_like(h).index_add(0, edges[1], messages)
            if self.bug == "messages computed, not received":
                h = F.relu(h)
            else:
                h = F.relu(h + 0.3 * received)
        score = self.decoder(h[pairs[:, 0]], h[pairs[:, 1]])
        return score if self.bug == "scores keep their column" else score.squeeze(-1)


def link_loss(score: Tensor, linked: Tensor) -> Tensor:
    return -(linked * F.logsigmoid(score) + (1 - linked) * F.logsigmoid(-score)).mean()


@problem(
    "links",
    "link prediction",
    bug("rounds in a list", "unregistered-parameters", "2"),
    bug("messages not sent", "idle-input", "edges", note=True),
    bug("messages computed, not received", "discarded-results", "relations"),
    bug("scores keep their column", "mixed-targets", "(26, 1)", "(26,)"),
    bug("links made unlikely", "negated-loss"),
    bug("decoder not in the optimizer", "forgotten-parameters", "decoder.weight"),
    part="third set",
)
def links(bug: str) -> Case:
    model = LinkPredictor(bug)
    graph = {
        "nodes": torch.randn(15, 7),
        "edges": torch.randint(0, 15, (2, 50)),
        "pairs": torch.randint(0, 15, (26, 2)),
    }
    sign = -1 if bug == "links made unlikely" else 1
    left_out = "decoder" if bug == "decoder not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        graph,
        torch.randint(0, 2, (26,)).float(),
        lambda score, linked: sign * link_loss(score, linked),
        torch.optim.Adam(trained, lr=1e-2),
    )


# A pointer network that sorts numbers: each answer is a place in the input.


class Pointer(nn.Module):
    def __init__(self, bug: str, width: int = 20) -> None:
        super().__init__()
        self.read = nn.LSTM(1, width, batch_first=bug != "numbers read down the batch")
        self.write = nn.LSTMCell(width, width)
        start = torch.empty(width) if bug == "first word never set" else torch.zeros(width)
        self.start = nn.Parameter(start)
        self.to_memory = nn.Linear(width, width)
        self.to_state = nn.Linear(width, width)
        self.v = nn.Linear(width, 1, bias=False)
        self.bug = bug

    def forward(self, numbers: Tensor) -> Tensor:
        memory, (h, c) = self.read(numbers.unsqueeze(-1))
        if self.bug == "numbers read down the batch":
            h, c = memory[:, -1][None], torch.zeros_like(memory[:, -1][None])
        h, c = h[0], c[0]
        word = self.start.expand(len(numbers), -1)
        answers = []
        for _ in range(numbers.size(1)):
            if self.bug == "state of the writer not kept":
                self.write(word, (h, c))
            else:
                h, c = self.write(word, (h, c))
            scores = self.v(torch.tanh(self.to_memory(memory) + self.to_state(h)[:, None])).squeeze(-1)
            weights = scores.softmax(0 if self.bug == "attention over the lists" else 1)
            word = (weights[..., None] * memory).sum(1)
            answers.append(scores if self.bug == "raw scores" else scores.log_softmax(1))
        return torch.stack(answers, 1)


@problem(
    "pointer",
    "pointer network",
    bug("numbers read down the batch", "mixed-samples", "read"),
    bug("first word never set", "uninitialized-memory", "start"),
    bug("state of the writer not kept", "discarded-results", "write"),
    bug("attention over the lists", "mixed-samples", "softmax"),
    bug("raw scores", "unnormalized-scores", "nll_loss"),
    bug("scores of the state not in the optimizer", "forgotten-parameters", "to_state.weight"),
    part="third set",
)
def pointer(bug: str) -> Case:
    model = Pointer(bug)
    numbers = torch.rand(16, 7)
    left_out = "to_state" if bug == "scores of the state not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        numbers,
        numbers.argsort(1),
        lambda out, order: F.nll_loss(out.flatten(0, 1), order.flatten()),
        torch.optim.Adam(trained, lr=3e-3),
    )


# Episodes of few examples: queries are compared with the mean of their class.


class Prototypes(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 16)
        self.drop = nn.Dropout(0.2)
        self.bug = bug

    def encode(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        deeper = F.relu(self.second(h))
        return self.last(self.drop(h if self.bug == "second layer skipped" else deeper))

    def forward(self, examples: Tensor, queries: Tensor) -> Tensor:
        if self.bug == "prototypes from the queries":
            prototypes = self.encode(queries).view(5, -1, 16).mean(1)
        else:
            prototypes = self.encode(examples).mean(1)
        asked = self.encode(queries)
        if self.bug == "queries centered":
            asked = asked - asked.mean(0)
        scores = -torch.cdist(asked, prototypes).pow(2)
        return scores.softmax(-1) if self.bug == "softmax of the distances" else scores


@problem(
    "few-shot",
    "episodes",
    bug("second layer skipped", "discarded-results", "second"),
    bug("prototypes from the queries", "idle-input or mixed-samples", note=True),
    bug("queries centered", "mixed-samples", "mean"),
    bug("softmax of the distances", "squashed-logits", "softmax"),
    bug("likelihood of distances", "unnormalized-scores", "nll_loss"),
    bug("queries of one class", "single-answer", "100 %"),
    bug("left in eval mode", "evaluation-mode", "drop"),
    part="third set",
)
def few_shot(bug: str) -> Case:
    model = Prototypes(bug)
    classes = torch.randn(5, 1, 12) * 2
    examples = classes + torch.randn(5, 4, 12)
    answers = torch.arange(5).repeat_interleave(6)
    queries = classes[answers, 0] + torch.randn(30, 12)
    if bug == "queries of one class":
        answers = torch.full_like(answers, 2)
    if bug == "left in eval mode":
        model.eval()
    loss = F.nll_loss if bug == "likelihood of distances" else F.cross_entropy
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, {"examples": examples, "queries": queries}, answers, loss, optimizer)


# A network whose weights are written by another network, one set of weights per sample.


class Hypernetwork(nn.Module):
    def __init__(self, bug: str, width: int = 10) -> None:
        super().__init__()
        self.hyper = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.to_weight = nn.Linear(32, 3 * width)
        self.to_bias = nn.Linear(32, width)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)]
        self.blocks = nn.ModuleList(blocks[:1] * 3 if bug == "one block three times" else blocks)
        self.out = nn.Linear(width, 2)
        self.bug = bug

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        code = self.hyper(condition)
        if self.bug == "one code for all":
            code = code.mean(0, keepdim=True).expand_as(code)
        weight = self.to_weight(code).view(len(x), 3, -1)
        bias = self.to_bias(code)
        if self.bug == "weights wrapped as parameters":
            weight = nn.Parameter(weight.detach())
        h = torch.einsum("ni,nij->nj", x, weight)
        if self.bug != "bias not added":
            h = h + bias
        h = torch.tanh(h)
        for block in self.blocks:
            h = block(h)
        return self.out(h)


@problem(
    "hypernetwork",
    "hypernetworks",
    bug("one code for all", "mixed-samples", "mean"),
    bug("weights wrapped as parameters", "blocked-path or unregistered-parameters", "to_weight"),
    bug("bias not added", "discarded-results", "to_bias"),
    bug("one block three times", "repeated-module", "blocks"),
    bug("condition is the same everywhere", "idle-input", "input[1]", note=True),
    bug("optimizer made for an earlier model", "foreign-optimizer or forgotten-parameters"),
    part="third set",
)
def hypernetwork(bug: str) -> Case:
    model = Hypernetwork(bug)
    condition = torch.randn(22, 4)
    if bug == "condition is the same everywhere":
        condition = torch.zeros_like(condition)
    x = torch.randn(22, 3)
    wanted = torch.stack([x[:, 0] * condition[:, 0], x[:, 1] + condition[:, 1]], 1)
    owner = Hypernetwork("") if bug == "optimizer made for an earlier model" else model
    return Case(model, (x, condition), wanted, F.mse_loss, torch.optim.RMSprop(owner.parameters(), lr=1e-3))
