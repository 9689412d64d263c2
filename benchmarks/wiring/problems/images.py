"""Images: classified, segmented, boxed, embedded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# The MNIST example.


class Net(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 12, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(12 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        if self.bug == "channels flattened before the batch":
            x = x.transpose(0, 1).reshape(-1, 12 * 4 * 4)
        else:
            x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.fc2(self.dropout(x))
        if self.bug == "no log_softmax":
            return x
        if self.bug == "softmax instead of log_softmax":
            return F.softmax(x, dim=1)
        return F.log_softmax(x, dim=0 if self.bug == "log_softmax over the batch" else 1)


@problem(
    "mnist-example",
    "image classification",
    bug("channels flattened before the batch", "mixed-samples", "reshape"),
    bug("no log_softmax", "unnormalized-scores", "nll_loss", "logits"),
    bug("softmax instead of log_softmax", "unnormalized-scores", "nll_loss", "probabilities"),
    bug("log_softmax over the batch", "unnormalized-scores or mixed-samples"),
    bug("images divided by 255 as integers", "idle-input", "input"),
    bug("only the convolutions in the optimizer", "forgotten-parameters", "fc1.weight"),
    bug("model.eval() left from the test", "evaluation-mode", "dropout"),
    bug("one digit per batch", "single-answer", "100 %"),
)
def mnist_example(bug: str) -> Case:
    model = Net(bug)
    data = torch.randint(0, 256, (24, 1, 12, 12))
    images = (data // 256).float() if bug == "images divided by 255 as integers" else data / 128 - 1
    labels = torch.randint(0, 10, (24,))
    if bug == "one digit per batch":
        labels = torch.full_like(labels, 7)
    if bug == "model.eval() left from the test":
        model.eval()
    parts = [model.conv1, model.conv2]
    if bug != "only the convolutions in the optimizer":
        parts = [model]
    trained = [each for part in parts for each in part.parameters()]
    return Case(model, images, labels, F.nll_loss, torch.optim.Adadelta(trained, lr=1.0))


# A residual network with batch norm.


class BasicBlock(nn.Module):
    def __init__(self, planes: int, bug: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        if self.bug == "second convolution not assigned":
            self.conv2(out)
        else:
            out = self.conv2(out)
        return F.relu(self.bn2(out) + x)


class ResNet(nn.Module):
    def __init__(self, bug: str, planes: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, planes, 3, padding=1)
        blocks = [BasicBlock(planes, bug) for _ in range(3)]
        if bug == "one block three times":
            blocks = [blocks[0]] * 3
        self.blocks = blocks if bug == "blocks in a list" else nn.ModuleList(blocks)
        self.fc = nn.Linear(planes, 5)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.bug == "every block gets the stem":
                h = block(x)
            else:
                h = x = block(x)
        x = h.mean((2, 3))
        return self.fc(x)


@problem(
    "resnet",
    "image classification",
    bug("second convolution not assigned", "discarded-results", "blocks.0.conv2"),
    bug("one block three times", "repeated-module", "blocks.0"),
    bug("blocks in a list", "unregistered-parameters"),
    bug("every block gets the stem", "discarded-results", "blocks.0"),
    bug("batch norm in eval mode", "evaluation-mode", "bn1"),
    bug("float labels as a column", "mixed-targets", "(10, 1)", "(10,)"),
)
def resnet(bug: str) -> Case:
    model = ResNet(bug)
    if bug == "batch norm in eval mode":
        model.eval()
    images, labels = torch.randn(10, 3, 8, 8), torch.randint(0, 5, (10,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if bug == "float labels as a column":
        model.fc = nn.Linear(12, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return Case(model, images, labels.float(), nn.MSELoss(), optimizer)
    return Case(model, images, labels, nn.CrossEntropyLoss(), optimizer)


# A vision transformer.


class ViT(nn.Module):
    def __init__(self, bug: str, dim: int = 32) -> None:
        super().__init__()
        self.patch = nn.Linear(3 * 4 * 4, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 10, dim))
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.head = nn.Linear(dim, 6)
        self.bug = bug

    def patches(self, x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        x = x.reshape(B, C, H // 4, 4, W // 4, 4)
        if self.bug == "patches gathered across images":
            return x.permute(2, 4, 0, 1, 3, 5).reshape(B, -1, C * 16)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * 16)

    def attend(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        if self.bug == "qkv split across images":
            q, k, v = self.qkv(x).reshape(3, B, 4, N, D // 4)
        else:
            q, k, v = self.qkv(x).reshape(B, N, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, D)
        return self.proj(y)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(self.patches(x))
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        x = x + self.attend(self.norm(x))
        x = x + self.mlp(x)
        logits = self.head(x[:, 0])
        return torch.sigmoid(logits) if self.bug == "sigmoid before the loss" else logits


@problem(
    "vit",
    "image classification",
    bug("patches gathered across images", "mixed-samples", "reshape"),
    bug("qkv split across images", "mixed-samples", "reshape"),
    bug("sigmoid before the loss", "squashed-logits", "sigmoid"),
    bug("class token is a plain tensor", "unregistered-parameters", "(1, 1, 32)"),
    bug("head trained, body forgotten in the middle", "forgotten-parameters", "mlp.1.weight"),
)
def vit(bug: str) -> Case:
    model = ViT(bug)
    if bug == "class token is a plain tensor":
        del model.cls
        model.cls = torch.zeros(1, 1, 32, requires_grad=True)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "head trained, body forgotten in the middle" or not name.startswith("mlp")
    ]
    images, labels = torch.randn(8, 3, 12, 12), torch.randint(0, 6, (8,))
    return Case(model, images, labels, F.cross_entropy, torch.optim.AdamW(trained, lr=1e-3))


# Segmentation with skip connections.


class UNet(nn.Module):
    def __init__(self, bug: str, out: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, out, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        d = self.down(x)
        b = self.bottom(F.max_pool2d(d, 2))
        if self.bug == "skip taken from the flipped batch":
            d = d.flip(0)
        y = self.last(torch.cat([self.up(b), d], 1))
        return y.sigmoid() if self.bug == "sigmoid and BCE with logits" else y


@problem(
    "unet-classes",
    "segmentation",
    bug("channels viewed as rows", "mixed-targets", "axis 1"),
    bug("skip taken from the flipped batch", "mixed-samples", "flip"),
    bug("all pixels are background", "single-answer", "100 %"),
    bug("loss on softmax outputs", "unnormalized-scores or squashed-logits", "nll_loss"),
)
def unet_classes(bug: str) -> Case:
    model = UNet(bug, 4)
    images, masks = torch.randn(4, 1, 8, 8), torch.randint(0, 4, (4, 8, 8))
    if bug == "all pixels are background":
        masks = torch.zeros_like(masks)

    def loss(scores: Tensor, masks: Tensor) -> Tensor:
        if bug == "channels viewed as rows":
            return F.cross_entropy(scores.view(-1, 4), masks.view(-1))
        if bug == "loss on softmax outputs":
            return F.nll_loss(scores.softmax(1), masks)
        return F.cross_entropy(scores, masks)

    return Case(model, images, masks, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def dice(logits: Tensor, masks: Tensor) -> Tensor:
    p = torch.sigmoid(logits)
    return 1 - 2 * (p * masks).sum() / (p + masks).sum()


@problem(
    "unet-mask",
    "segmentation",
    bug("sigmoid and BCE with logits", "squashed-logits", "sigmoid"),
    bug("masks without a channel", "mixed-targets", "(4, 1, 8, 8)", "(4, 8, 8)"),
    bug("dice against masks without a channel", "mixed-targets"),
    bug("masks are all zero", "single-answer", "100 %", note=True),
    bug("up-convolution not in the optimizer", "forgotten-parameters", "up.weight"),
)
def unet_mask(bug: str) -> Case:
    model = UNet(bug, 1)
    images, masks = torch.randn(4, 1, 8, 8), (torch.rand(4, 1, 8, 8) < 0.4).float()
    criterion = F.mse_loss if bug == "masks without a channel" else F.binary_cross_entropy_with_logits
    if bug == "dice against masks without a channel":
        criterion = dice
    if "without a channel" in bug:
        masks = masks.squeeze(1)
    if bug == "masks are all zero":
        masks = torch.zeros_like(masks)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "up-convolution not in the optimizer" or not name.startswith("up.")
    ]
    return Case(model, images, masks, criterion, torch.optim.Adam(trained, lr=1e-3))


# One object per image: a class and a box.


class Detector(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.cls_head = nn.Linear(64, 4)
        self.box_head = nn.Linear(64, 4)
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.backbone(x)
        if self.bug == "features normalized over the batch":
            f = F.softmax(f, dim=0)
        boxes = self.box_head(f.detach() if self.bug == "box head on detached features" else f)
        return self.cls_head(f), boxes


@problem(
    "detector",
    "detection",
    bug("boxes in pixels", "targets-out-of-scale"),
    bug("features normalized over the batch", "mixed-samples", "softmax"),
    bug("box head forgotten in the optimizer", "forgotten-parameters", "box_head.weight"),
    bug("class part of the loss negated", "negated-loss"),
    bug("class scores from a softmax", "squashed-logits or unnormalized-scores", "cross_entropy"),
)
def detector(bug: str) -> Case:
    model = Detector(bug)
    images, labels, boxes = torch.randn(12, 3, 11, 11), torch.randint(0, 4, (12,)), torch.rand(12, 4)
    if bug == "boxes in pixels":
        boxes = 640 * boxes

    def loss(output: tuple[Tensor, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        scores, found = output
        if bug == "class scores from a softmax":
            scores = scores.softmax(-1)
        part = F.cross_entropy(scores, wanted["labels"])
        part = -part if bug == "class part of the loss negated" else part
        return part + F.smooth_l1_loss(found, wanted["boxes"])

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "box head forgotten in the optimizer" or not name.startswith("box_head")
    ]
    targets = {"labels": labels, "boxes": boxes}
    return Case(model, images, targets, loss, torch.optim.Adam(trained, lr=1e-3))
