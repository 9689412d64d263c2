"""Several answers at once: words ahead, two views without negatives, a chain of tags, boxes around anchors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Three words ahead: one trunk, and one head for each of the next words.


class SeveralAhead(nn.Module):
    def __init__(self, bug: str, words: int = 43, wide: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.trunk = nn.GRU(
            wide, wide, num_layers=2, batch_first=True, bidirectional=bug == "reads both ways"
        )
        out = 2 * wide if bug == "reads both ways" else wide
        heads = [nn.Sequential(nn.Linear(out, wide), nn.SiLU(), nn.Linear(wide, words)) for _ in range(3)]
        self.heads = heads if bug == "heads in a list" else nn.ModuleList(heads)
        self.bug = bug

    def forward(self, ids: Tensor) -> Tensor:
        h, _ = self.trunk(self.words(ids))
        if self.bug == "trunk detached for the heads":
            h = h.detach()
        if self.bug == "always the first head":
            return torch.stack([self.heads[0](h) for _ in self.heads], 2)
        return torch.stack([head(h) for head in self.heads], 2)  # (texts, steps, ahead, words)


@problem(
    "several-ahead",
    "several words ahead",
    bug("reads both ways", "visible-answer"),
    bug("heads in a list", "unregistered-parameters", "12"),
    bug("trunk detached for the heads", "blocked-path", "trunk"),
    bug("always the first head", "idle-modules", "heads"),
    bug("heads begin with the own word", "shifted-targets or visible-answer"),
    bug("scores transposed by a view", "mixed-targets or shifted-targets"),
    bug("trunk not in the optimizer", "forgotten-parameters", "trunk.weight_ih_l0"),
    part="fourth set",
)
def several_ahead(bug: str) -> Case:
    model = SeveralAhead(bug)
    text = torch.randint(0, 43, (10, 19))
    first = 0 if bug == "heads begin with the own word" else 1
    ahead = torch.stack([text[:, k : k + 16] for k in range(first, first + 3)], 2)

    def loss(scores: Tensor, ahead: Tensor) -> Tensor:
        if bug == "scores transposed by a view":
            return F.cross_entropy(scores.reshape(10, 43, 16, 3), ahead)
        return F.cross_entropy(scores.permute(0, 3, 1, 2), ahead)

    left_out = "trunk" if bug == "trunk not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, text[:, :16], ahead, loss, torch.optim.AdamW(trained, lr=2e-3))


# Two views without negatives: the correlation of their features shall be the identity, a loss over the whole batch.


class TwoViews(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(2, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, 2, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
        )
        self.projector = nn.Sequential(nn.Linear(128, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
        self.bug = bug

    def embed(self, view: Tensor) -> Tensor:
        h = self.encoder(view)
        if self.bug == "signals folded across the batch":
            return self.projector(h.permute(1, 0, 2).reshape(len(view), -1))
        return self.projector(h.flatten(1))

    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        first = self.embed(one)
        second = first if self.bug == "first view twice" else self.embed(two)
        return first, second


def correlation(views: tuple[Tensor, Tensor], bug: str) -> Tensor:
    a, b = ((z - z.mean(0)) / (z.std(0) + 1e-4) for z in views)
    c = a.T @ b / len(a)
    on = (1 - c.diagonal()).pow(2).sum()
    off = c.pow(2).sum() - c.diagonal().pow(2).sum()
    if bug == "features pulled apart":
        on = -on
    return on + 0.02 * off


@problem(
    "two-views",
    "redundancy reduction",
    bug("signals folded across the batch", "mixed-samples"),
    bug("first view twice", "idle-input", "two", note=True),
    bug("features pulled apart", "negated-loss"),
    bug("signals are all zero", "idle-input"),
    bug("batch norm kept in eval mode", "evaluation-mode", "projector.1"),
    bug("projector not in the optimizer", "forgotten-parameters", "projector.0.weight"),
    part="fourth set",
)
def two_views(bug: str) -> Case:
    model = TwoViews(bug)
    signal = torch.randn(20, 2, 32)
    if bug == "signals are all zero":
        signal = torch.zeros_like(signal)
    noise = 0.0 if bug == "signals are all zero" else 0.3
    one = signal + noise * torch.randn_like(signal)
    two = signal.roll(1, -1) + noise * torch.randn_like(signal)
    if bug == "batch norm kept in eval mode":
        model.eval()
    left_out = "projector" if bug == "projector not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"one": one, "two": two}
    return Case(
        model, inputs, None, lambda views: correlation(views, bug), torch.optim.AdamW(trained, lr=1e-3)
    )


# A chain of tags: scores of a recurrent layer, and the likelihood of the whole chain.


class ChainTagger(nn.Module):
    def __init__(self, bug: str, words: int = 40, tags: int = 6, wide: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide, padding_idx=0)
        self.gru = nn.GRU(wide, wide, bidirectional=True, batch_first=bug != "layout of the recurrent layer")
        self.emit = nn.Linear(2 * wide, tags)
        step = torch.randn(tags, tags) * 0.1
        self.step = step.requires_grad_() if bug == "steps are a tensor" else nn.Parameter(step)
        self.bug = bug

    def forward(self, ids: Tensor, tags: Tensor, real: Tensor) -> Tensor:
        h, _ = self.gru(self.embed(ids))
        if self.bug == "both directions viewed apart":
            h = h.reshape(2, len(ids), ids.shape[1], -1).permute(1, 2, 0, 3).flatten(2)
        score = self.emit(h)
        if self.bug == "scores as numbers":
            score = score.detach()
        weight = torch.ones_like(real) if self.bug == "length not used" else real
        gold = self.gold(score, tags, weight)
        alpha = score[:, 0]
        for t in range(1, ids.shape[1]):
            following = torch.logsumexp(alpha[:, :, None] + self.step, 1) + score[:, t]
            alpha = torch.where(weight[:, t, None], following, alpha)
        whole = alpha.logsumexp(0 if self.bug == "summed over the sentences" else 1)
        return (
            whole.mean() - gold.mean() if self.bug != "likelihood minimized" else gold.mean() - whole.mean()
        )

    def gold(self, score: Tensor, tags: Tensor, real: Tensor) -> Tensor:
        emitted = score.gather(2, tags[..., None]).squeeze(2)
        stepped = self.step[tags[:, :-1], tags[:, 1:]]
        return (emitted * real).sum(1) + (stepped * real[:, 1:]).sum(1)


@problem(
    "chain-tagger",
    "conditional random field",
    bug("layout of the recurrent layer", "mixed-samples", "gru"),
    bug("steps are a tensor", "unregistered-parameters", "1"),
    bug("both directions viewed apart", "mixed-samples"),
    bug("scores as numbers", "blocked-path", "emit"),
    bug("length not used", "unmasked-padding or idle-input", note=True),
    bug("summed over the sentences", "mixed-samples or mixed-targets"),
    bug("likelihood minimized", "negated-loss"),
    bug("emissions not in the optimizer", "forgotten-parameters", "emit.weight"),
    part="fourth set",
)
def chain_tagger(bug: str) -> Case:
    model = ChainTagger(bug)
    length = torch.randint(6, 12, (12, 1))
    real = torch.arange(11) < length
    ids = torch.randint(1, 40, (12, 11)).masked_fill(~real, 0)
    tags = (ids % 6).masked_fill(~real, 0)
    left_out = "emit" if bug == "emissions not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"ids": ids, "tags": tags, "real": real}
    return Case(model, inputs, None, None, torch.optim.Adam(trained, lr=5e-3))


# Boxes around anchors: a class and four offsets per anchor, most anchors are background and some are not counted.


class AnchorDetector(nn.Module):
    def __init__(self, bug: str, anchors: int = 3, kinds: int = 4, wide: int = 24) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, wide, 3, 2, 1),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, 2, 1),
            nn.ReLU(),
        )
        self.tower = nn.Conv2d(wide, wide, 3, padding=1)
        self.kind = nn.Conv2d(wide, anchors * kinds, 1)
        self.box = nn.Conv2d(wide, anchors * 4, 1)
        self.kinds = kinds
        self.bug = bug

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        h = self.backbone(pictures)
        if self.bug == "tower not assigned":
            F.relu(self.tower(h))
        else:
            h = F.relu(self.tower(h))
        kind, box = self.kind(h), self.box(h)
        if self.bug == "boxes from a copy":
            box = self.box(h.clone().detach())
        n = len(pictures)
        if self.bug == "anchors before the pictures":
            kind = kind.permute(2, 3, 0, 1).reshape(n, -1, self.kinds)
        else:
            kind = kind.permute(0, 2, 3, 1).reshape(n, -1, self.kinds)
        if self.bug == "kinds through a sigmoid":
            kind = kind.sigmoid()
        return kind, box.permute(0, 2, 3, 1).reshape(n, -1, 4)


@problem(
    "anchors",
    "anchor detection",
    bug("tower not assigned", "discarded-results", "tower"),
    bug("boxes from a copy", "blocked-path", "backbone"),
    bug("anchors before the pictures", "mixed-samples"),
    bug("kinds through a sigmoid", "squashed-logits", "sigmoid"),
    bug("offsets in pixels", "targets-out-of-scale"),
    bug("every anchor is background", "single-answer", note=True),
    bug("focal loss with a plus", "negated-loss"),
    bug("box layer not in the optimizer", "forgotten-parameters", "box.weight"),
    part="fourth set",
)
def anchors(bug: str) -> Case:
    model = AnchorDetector(bug)
    pictures = torch.randn(6, 3, 16, 16)
    kind = F.one_hot(torch.randint(0, 4, (6, 48)), 4).float()
    kind[torch.rand(6, 48) < 0.7] = 0
    if bug == "every anchor is background":
        kind = torch.zeros_like(kind)
    counted = (torch.rand(6, 48) < 0.9).float()
    offsets = torch.randn(6, 48, 4) * 0.5
    if bug == "offsets in pixels":
        offsets = offsets * 640
    sign = 1 if bug == "focal loss with a plus" else -1

    def loss(out: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores, boxes = out
        kind, offsets, counted = truth
        right = scores * (2 * kind - 1)
        focal = sign * ((-right).sigmoid() ** 2 * F.logsigmoid(right)).sum(-1)
        some = kind.amax(-1)
        box = F.smooth_l1_loss(boxes, offsets, reduction="none").sum(-1) * some
        return (focal * counted).sum() / counted.sum() + (box * counted).sum() / (
            some * counted
        ).sum().clamp_min(1)

    left_out = "box" if bug == "box layer not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model, pictures, (kind, offsets, counted), loss, torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    )
