"""What belongs to what: facts of a graph, sessions of a shop, clicks on advertisements, photographs of one person."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Facts (head, relation, tail) against corrupted tails, scored by a distance.


class Translations(nn.Module):
    def __init__(self, bug: str, things: int = 60, relations: int = 7, dim: int = 24) -> None:
        super().__init__()
        self.things = nn.Embedding(things, dim)
        self.relations = nn.Embedding(relations, dim)
        if bug == "relations never initialized":
            self.relations = nn.Embedding.from_pretrained(torch.empty(relations, dim), freeze=False)
        self.gate = nn.Parameter(torch.ones(relations, dim))
        self.bug = bug

    def forward(self, head: Tensor, relation: Tensor, tails: Tensor) -> Tensor:
        h = F.normalize(self.things(head), dim=0 if self.bug == "normalized down the batch" else -1)
        r = self.relations(relation)
        gate = self.gate[relation]
        t = F.normalize(self.things(tails), dim=-1)
        if self.bug == "heads looked up once":
            h = F.normalize(self.things(head[:1]), dim=-1)
        if self.bug == "relation left out":
            moved = h * gate
        else:
            moved = h * gate + r
        return -(moved.unsqueeze(1) - t).norm(dim=-1)  # (facts, 1 + corrupted)


@problem(
    "knowledge-graph",
    "knowledge graph",
    bug("relations never initialized", "uninitialized-memory", "relations.weight"),
    bug("normalized down the batch", "mixed-samples"),
    bug("heads looked up once", "mixed-samples"),
    bug("relation left out", "discarded-results", "relations"),
    bug("true fact pushed away", "negated-loss"),
    bug("margin taken over the batch", "mixed-targets or mixed-samples"),
    bug("only the things are trained", "forgotten-parameters", "relations.weight", "gate"),
    part="fourth set",
)
def knowledge_graph(bug: str) -> Case:
    model = Translations(bug)
    head, relation = torch.randint(0, 60, (24,)), torch.randint(0, 7, (24,))
    true = (head * 3 + relation) % 60
    tails = torch.cat([true[:, None], torch.randint(0, 60, (24, 5))], 1)

    def margin(scores: Tensor) -> Tensor:
        right, wrong = scores[:, :1], scores[:, 1:]
        if bug == "true fact pushed away":
            return F.relu(1 + right - wrong).mean()
        if bug == "margin taken over the batch":
            return F.relu(1 + wrong.unsqueeze(1) - right.unsqueeze(0)).mean()
        return F.relu(1 + wrong - right).mean()

    trained = model.things.parameters() if bug == "only the things are trained" else model.parameters()
    return Case(model, (head, relation, tails), None, margin, torch.optim.Adam(trained, lr=1e-2))


# What a visitor looks at next: attention over a session that is padded on the left, one sampled negative per step.


class SessionModel(nn.Module):
    def __init__(self, bug: str, items: int = 50, dim: int = 32, steps: int = 14) -> None:
        super().__init__()
        self.item = nn.Embedding(items, dim, padding_idx=0)
        self.place = nn.Embedding(steps, dim)
        self.drop = nn.Dropout(0.2)
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(dim, 2, dropout=0.2, batch_first=bug != "layout forgotten")
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(2)
        )
        self.last = nn.LayerNorm(dim)
        self.bug = bug

    def forward(self, seen: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        steps = seen.shape[1]
        x = self.item(seen)
        if self.bug != "places forgotten":
            x = x + self.place(torch.arange(steps))
        x = self.drop(x)
        later = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        if self.bug == "mask not passed":
            later = torch.zeros_like(later)
        for norm, attention, forward in zip(self.norms, self.attention, self.forwards, strict=True):
            q = norm(x)
            x = q + attention(q, x, x, attn_mask=later if self.bug != "layout forgotten" else None)[0]
            if self.bug == "feed-forward in vain":
                forward(x)
            else:
                x = x + forward(x)
        x = self.last(x)
        good = (x * self.item(positive)).sum(-1)
        bad = (x * self.item(positive if self.bug == "negative overwritten" else negative)).sum(-1)
        return good, bad


@problem(
    "session-recommender",
    "sequential recommendation",
    bug("layout forgotten", "mixed-samples", "attention.0"),
    bug("places forgotten", "order-blind"),
    bug("mask not passed", "visible-answer"),
    bug("feed-forward in vain", "discarded-results", "forwards.0"),
    bug("negative overwritten", "idle-input", "negative", note=True),
    bug("positive items are the seen ones", "shifted-targets"),
    bug("left in eval mode", "evaluation-mode", "drop"),
    part="fourth set",
)
def session_recommender(bug: str) -> Case:
    model = SessionModel(bug)
    start = torch.randint(1, 50, (12, 1))
    walk = (start + 3 * torch.arange(15)) % 49 + 1
    seen, positive = walk[:, :-1].clone(), walk[:, 1:].clone()
    for row in range(0, 12, 3):  # sessions that are shorter
        seen[row, : 2 + row // 3] = 0
        positive[row, : 2 + row // 3] = 0
    if bug == "positive items are the seen ones":
        positive = seen.clone()
    negative = torch.randint(1, 50, positive.shape)
    if bug == "left in eval mode":
        model.eval()

    def loss(scores: tuple[Tensor, Tensor], real: Tensor) -> Tensor:
        good, bad = scores
        good_loss = F.binary_cross_entropy_with_logits(good[real], torch.ones_like(good[real]))
        return good_loss + F.binary_cross_entropy_with_logits(bad[real], torch.zeros_like(bad[real]))

    inputs = {"seen": seen, "positive": positive, "negative": negative}
    return Case(model, inputs, positive != 0, loss, torch.optim.Adam(model.parameters(), lr=2e-3))


# Is this advertisement clicked? A factorization machine beside a perceptron, one embedding per column.


class ClickModel(nn.Module):
    def __init__(self, bug: str, sizes: tuple[int, ...] = (12, 30, 7, 20), dim: int = 8) -> None:
        super().__init__()
        embeddings = [nn.Embedding(size, dim) for size in sizes]
        self.embeddings = embeddings if bug == "columns in a list" else nn.ModuleList(embeddings)
        self.linear = nn.ModuleList(nn.Embedding(size, 1) for size in sizes)
        wide = len(sizes) * dim + 3
        self.deep = nn.Sequential(
            nn.Linear(wide, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1)
        )
        self.bug = bug

    def forward(self, columns: Tensor, numbers: Tensor) -> Tensor:
        fields = torch.stack([each(columns[:, i]) for i, each in enumerate(self.embeddings)], 1)
        first = sum(each(columns[:, i]) for i, each in enumerate(self.linear))
        axis = 0 if self.bug == "crosses summed over the rows" else 1
        crossed = fields.sum(axis) ** 2 - (fields**2).sum(axis)
        if self.bug == "crosses summed over the rows":
            crossed = crossed.mean(0, keepdim=True)
        cross = 0.5 * crossed.sum(-1, keepdim=True)
        if self.bug == "embeddings stacked before the rows":
            flat = torch.stack([each(columns[:, i]) for i, each in enumerate(self.embeddings)]).reshape(
                len(columns), -1
            )
        else:
            flat = fields.flatten(1)
        if self.bug == "numbers zeroed by a bad mean":
            numbers = numbers * 0.0
        deep = self.deep(torch.cat([flat, numbers], 1))
        logit = first + cross + deep
        if self.bug == "probability returned":
            return logit.sigmoid().squeeze(1)
        return logit if self.bug == "clicks as a vector" else logit.squeeze(1)


@problem(
    "click-prediction",
    "click prediction",
    bug("columns in a list", "unregistered-parameters", "4"),
    bug("crosses summed over the rows", "mixed-samples"),
    bug("embeddings stacked before the rows", "mixed-samples"),
    bug("numbers zeroed by a bad mean", "idle-input", "numbers"),
    bug("probability returned", "squashed-logits", "sigmoid"),
    bug("clicks as a vector", "mixed-targets"),
    bug("linear part not in the optimizer", "forgotten-parameters", "linear.0.weight"),
    part="fourth set",
)
def click_prediction(bug: str) -> Case:
    model = ClickModel(bug)
    columns = torch.stack([torch.randint(0, size, (40,)) for size in (12, 30, 7, 20)], 1)
    numbers = torch.randn(40, 3)
    clicked = ((columns[:, 0] + columns[:, 2]) % 3 == 0).float()

    def loss(logit: Tensor, clicked: Tensor) -> Tensor:
        if bug == "clicks as a vector":  # written out, because torch refuses these shapes
            return (F.softplus(logit) - logit * clicked).mean()
        return F.binary_cross_entropy_with_logits(logit, clicked)

    left_out = "linear" if bug == "linear part not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"columns": columns, "numbers": numbers}
    return Case(model, inputs, clicked, loss, torch.optim.Adagrad(trained, lr=0.05))


# Photographs of the same person belong together: triplets chosen as the hardest of the batch.


def conv(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1), nn.GroupNorm(4, outside), nn.SiLU())


class FaceNetwork(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv(1, 16, 2), conv(16, 32, 2), conv(32, 32, 1))
        self.embed = nn.Linear(32 * 16, 24)
        self.bug = bug

    def forward(self, faces: Tensor) -> Tensor:
        h = self.trunk(faces)
        if self.bug == "features flattened channel first":
            h = h.transpose(0, 1).reshape(len(faces), -1)
        else:
            h = h.flatten(1)
        if self.bug == "trunk cut off by .data":
            h = h.data
        z = self.embed(h)
        if self.bug == "whitened by this batch":
            z = (z - z.mean(0)) / z.std(0)
        if self.bug == "signs kept":
            z = z.sign()
        return F.normalize(z, dim=1)


@problem(
    "face-triplets",
    "metric learning",
    bug("features flattened channel first", "mixed-samples"),
    bug("trunk cut off by .data", "blocked-path", "trunk"),
    bug("whitened by this batch", "mixed-samples"),
    bug("signs kept", "step-function", "sign"),
    bug("hardest pairs exchanged", "negated-loss"),
    bug("everybody is the same person", "single-answer"),
    bug("embedding made after the optimizer", "forgotten-parameters", "embed.weight"),
    part="fourth set",
)
def face_triplets(bug: str) -> Case:
    model = FaceNetwork(bug)
    person = torch.arange(6).repeat_interleave(4)
    faces = torch.randn(6, 1, 16, 16).repeat_interleave(4, 0) + 0.7 * torch.randn(24, 1, 16, 16)
    if bug == "everybody is the same person":
        person = torch.zeros_like(person)

    def hardest(z: Tensor, person: Tensor) -> Tensor:
        distance = (2 - 2 * z @ z.T).clamp_min(1e-6).sqrt()
        same = person[:, None] == person[None, :]
        far = distance.masked_fill(~same, 0).amax(1)
        near = distance.masked_fill(same, 4).amin(1)
        if bug == "hardest pairs exchanged":
            far, near = near, far
        return F.softplus(4 * (far - near + 0.2)).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if bug == "embedding made after the optimizer":
        model.embed = nn.Linear(32 * 16, 24)
    return Case(model, faces, person, hardest, optimizer)
