"""Fitting one thing to another: pictures to captions, a pretrained network to new labels, masks to cells."""

from __future__ import annotations

from itertools import chain

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Pictures and captions: two towers, and the pairs of the batch are the classes.


class CLIP(nn.Module):
    def __init__(self, bug: str, embed_dim: int = 32) -> None:
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.visual_projection = nn.Linear(128, embed_dim)
        self.token_embedding = nn.Embedding(40, 32)
        self.text = nn.GRU(32, 128, batch_first=True)
        self.text_projection = nn.Linear(128, embed_dim)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.bug = bug

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        image_features = self.visual_projection(self.visual(image))
        if self.bug == "lengths in place of the words":
            text = torch.tensor([[len(words)] * len(words) for words in text])
        _, last = self.text(self.token_embedding(text))
        if self.bug == "one projection for both towers":
            text_features = self.visual_projection(last[0])
        else:
            text_features = self.text_projection(last[0])
        axis = 0 if self.bug == "features normalized over the batch" else -1
        image_features = F.normalize(image_features, dim=axis)
        text_features = F.normalize(text_features, dim=axis)
        scale = self.logit_scale.exp()
        if self.bug == "scale as a Python number":
            scale = torch.tensor(scale.item())
        return image_features, text_features, scale


@problem(
    "picture-captions",
    "contrastive learning",
    bug("features normalized over the batch", "mixed-samples"),
    bug("pictures compared with themselves", "discarded-results or idle-input"),
    bug("every caption belongs to the first", "single-answer"),
    bug("scale as a Python number", "blocked-path", "logit_scale"),
    bug("similarities through softmax", "squashed-logits", "softmax"),
    bug("lengths in place of the words", "idle-input", "text", note=True),
    bug("one projection for both towers", "idle-modules", "text_projection", note=True),
    bug("text tower not chained", "forgotten-parameters", "text"),
    part="sixth set",
)
def picture_captions(bug: str) -> Case:
    model = CLIP(bug)
    data = load_digits()
    image = torch.tensor(data.images[:24], dtype=torch.float32).unsqueeze(1) / 8 - 1
    text = torch.tensor(data.target[:24])[:, None] * 3 + torch.randint(0, 3, (24, 6))
    text[:, 3:] = 30 + (torch.arange(24)[:, None] // torch.tensor([1, 5, 2])) % 10
    labels = torch.arange(24)
    if bug == "every caption belongs to the first":
        labels = torch.zeros(24, dtype=torch.long)

    def clip_loss(out: tuple[Tensor, Tensor, Tensor], labels: Tensor) -> Tensor:
        image_features, text_features, scale = out
        if bug == "pictures compared with themselves":
            text_features = image_features
        logits = scale * image_features @ text_features.t()
        if bug == "similarities through softmax":
            logits = logits.softmax(dim=-1)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    params = model.parameters()
    if bug == "text tower not chained":
        params = chain(model.visual.parameters(), model.visual_projection.parameters(), [model.logit_scale])
    optimizer = torch.optim.AdamW(params, lr=2e-3)
    return Case(model, {"image": image, "text": text}, labels, clip_loss, optimizer)


# New labels for a pretrained network: two raw parameters beside each frozen matrix.


class LoRALinear(nn.Module):
    def __init__(self, linear: nn.Linear, bug: str, r: int = 8, alpha: int = 4) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        a = torch.randn(r, linear.in_features) / linear.in_features**0.5
        b = torch.zeros(linear.out_features, r)
        if bug == "both factors begin at zero":
            a = torch.zeros_like(a)
        if bug == "first factor without kaiming_uniform_":
            a = linear.weight.new_empty(r, linear.in_features)
        if bug == "factors in a dict":
            self.lora = {"A": nn.Parameter(a), "B": nn.Parameter(b)}
        else:
            self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        self.scaling = alpha // r if bug == "scaling with a floor division" else alpha / r
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "factors in a dict":
            return self.linear(x) + x @ self.lora["A"].t() @ self.lora["B"].t() * self.scaling
        if self.bug == "merged through data":
            merged = self.linear.weight.data + self.scaling * (self.lora_B.data @ self.lora_A.data)
            return F.linear(x, merged, self.linear.bias)
        return self.linear(x) + x @ self.lora_A.t() @ self.lora_B.t() * self.scaling


def pretrained(x: Tensor, y: Tensor) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


@problem(
    "lora-digits",
    "fine-tuning",
    bug("both factors begin at zero", "stuck-zeros or constant-init", "lora"),
    bug("first factor without kaiming_uniform_", "uninitialized-memory", "lora_A"),
    bug("factors in a dict", "unregistered-parameters"),
    bug("scaling with a floor division", "discarded-results or faint-adapter or dead-branches", "lora"),
    bug("merged through data", "blocked-path", "lora"),
    bug("only names with lora_B are trained", "forgotten-parameters", "lora_A"),
    bug("frozen after the factors were added", "frozen-random-weights", "lora_A", note=True),
    bug("logsigmoid before nll_loss", "unnormalized-scores", "nll_loss"),
    part="sixth set",
)
def lora_digits(bug: str) -> Case:
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    digits = torch.tensor(data.target)
    net = pretrained(images[:600], digits[:600])
    for i in (0, 2):
        net[i] = LoRALinear(net[i], bug)
    net[4] = nn.Linear(64, 10)
    if bug == "frozen after the factors were added":
        net.requires_grad_(False)
        net[4].requires_grad_(True)
    x, y = images[600:664], (digits[600:664] * 3 + 1) % 10

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        if bug == "logsigmoid before nll_loss":
            return F.nll_loss(F.logsigmoid(logits), y)
        return F.cross_entropy(logits, y)

    params = [p for p in net.parameters() if p.requires_grad]
    if bug == "only names with lora_B are trained":
        params = [p for name, p in net.named_parameters() if "lora_B" in name or name.startswith("4.")]
    return Case(net, x, y, loss, torch.optim.AdamW(params, lr=5e-3, weight_decay=0.0))


# Cells: a U-Net of two levels, and the overlap of its mask with the true one.


class DoubleConv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self, bug: str, wide: int = 12) -> None:
        super().__init__()
        self.enc1 = DoubleConv(1, wide)
        self.enc2 = DoubleConv(wide, 2 * wide)
        self.gate = nn.Conv2d(2 * wide, 1, 1)
        self.up1 = nn.ConvTranspose2d(2 * wide, wide, 2, stride=2)
        self.dec1 = DoubleConv(2 * wide, wide)
        self.outc = nn.Conv2d(wide, 1, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "checkpoint of the first level":
            e1 = checkpoint(self.enc1, x, use_reentrant=True)
        else:
            e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        if self.bug == "functional batch norm always in training":
            e2 = F.batch_norm(e2, None, None, training=True)
        d1 = self.up1(e2 * torch.sigmoid(self.gate(e2)))
        d1 = torch.cat([e1, e1 if self.bug == "skip concatenated with itself" else d1], dim=1)
        return self.outc(self.dec1(d1))


def dice_coefficient(probs: Tensor, mask: Tensor) -> Tensor:
    overlap = (probs * mask).sum(dim=(-1, -2))
    return ((2 * overlap + 1) / (probs.sum(dim=(-1, -2)) + mask.sum(dim=(-1, -2)) + 1)).mean()


@problem(
    "cells-unet",
    "segmentation",
    bug("masks without a channel", "mixed-targets"),
    bug("coefficient returned as the loss", "negated-loss"),
    bug("mask cut at one half", "step-function", "floor"),
    bug("skip concatenated with itself", "discarded-results", "up1"),
    bug("mask compared with 255", "single-answer", note=True),
    bug("functional batch norm always in training", "mixed-samples"),
    bug("checkpoint of the first level", "blocked-path", "enc1"),
    bug("eval mode since it was built", "evaluation-mode"),
    part="sixth set",
)
def cells_unet(bug: str) -> Case:
    model = UNet(bug).eval() if bug == "eval mode since it was built" else UNet(bug)
    axis = torch.arange(16.0)
    center, radius = 4 + 8 * torch.rand(10, 2, 1, 1), 2 + 2 * torch.rand(10, 1, 1)
    inside = (axis[:, None] - center[:, 0]) ** 2 + (axis - center[:, 1]) ** 2 < radius**2
    png = inside.unsqueeze(1) * 255
    mask = (png > 255 if bug == "mask compared with 255" else png > 127).float()
    images = png / 255 * 0.8 + 0.4 * torch.randn(10, 1, 16, 16)
    if bug == "masks without a channel":
        mask = mask.squeeze(1)

    def dice_loss(logits: Tensor, mask: Tensor) -> Tensor:
        probs = torch.sigmoid(logits)
        if bug == "mask cut at one half":
            probs = torch.floor(probs + 0.5)
        dice = dice_coefficient(probs, mask)
        return dice if bug == "coefficient returned as the loss" else 1 - dice

    return Case(model, images, mask, dice_loss, torch.optim.Adam(model.parameters(), lr=3e-3))
