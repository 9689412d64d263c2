"""Pictures with labels: digits, colored shapes, several tags per picture, and a mask for each picture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Random handwritten digits of 8 x 8 pixels between 0 and 1, and their labels."""
    data = load_digits()
    rows = torch.randperm(len(data.target))[:count]
    pictures = torch.tensor(data.images, dtype=torch.float32)[rows].unsqueeze(1) / 16
    return pictures, torch.tensor(data.target)[rows]


# Handwritten digits with two convolutions, as in a first tutorial.


class DigitsNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        if self.bug == "second convolution not assigned":
            F.relu(self.conv2(x))
        else:
            x = F.relu(self.conv2(x))
        x = self.pool(x)
        x = x.view(-1, 16 * 4 * 4)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.2) if self.bug == "functional dropout without training" else self.drop(x)
        x = self.fc2(x)
        if self.bug == "softmax at the end":
            return F.softmax(x, dim=1)
        if self.bug == "softmax over dim 0":
            return F.softmax(x, dim=0)
        if self.bug == "log_softmax over dim 0":
            return F.log_softmax(x, dim=0)
        return x


@problem(
    "digits-cnn",
    "image classification",
    bug("softmax at the end", "squashed-logits", "softmax"),
    bug("softmax over dim 0", "mixed-samples or squashed-logits", "softmax"),
    bug("log_softmax over dim 0", "mixed-samples or unnormalized-scores", "log_softmax"),
    bug("second convolution not assigned", "discarded-results", "conv2"),
    bug("functional dropout without training", "lasting-dropout", "dropout"),
    bug("pixels from 0 to 255", "input-out-of-scale"),
    bug("last layer replaced after the optimizer", "forgotten-parameters or foreign-optimizer", "fc2.weight"),
    bug("labels are all the first digit", "single-answer", "100 %"),
    bug("loss wrapped in a new tensor", "blocked-path"),
    bug("maximize left on", "uphill-step or negated-loss"),
    part="fifth set",
)
def digits_cnn(bug: str) -> Case:
    model = DigitsNet(bug)
    images, labels = digits(64)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.002, maximize=bug == "maximize left on", weight_decay=1e-5
    )
    if bug == "pixels from 0 to 255":
        images = images * 255
    if bug == "last layer replaced after the optimizer":
        model.fc2 = nn.Linear(64, 10)
    if bug == "labels are all the first digit":
        labels = torch.zeros_like(labels)
    criterion = nn.CrossEntropyLoss()
    if bug == "loss wrapped in a new tensor":
        return Case(
            model,
            images,
            labels,
            lambda out, y: torch.tensor(criterion(out, y).item(), requires_grad=True),
            optimizer,
        )
    return Case(model, images, labels, criterion, optimizer)


# Colored shapes with residual blocks; the pictures come channels-last, as image libraries load them.


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, bug: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        out = self.bn1(out) if self.bug == "first norm used twice" else self.bn2(out)
        if self.bug == "branch overwritten by the shortcut":
            out = self.shortcut(x)
        else:
            out = out + self.shortcut(x)
        return F.relu(out)


class SmallResNet(nn.Module):
    def __init__(self, bug: str, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        same = [BasicBlock(16, 16, 1, bug) for _ in range(2)]
        if bug == "one block multiplied by two":
            same = [BasicBlock(16, 16, 1, bug)] * 2
        self.same = same if bug == "blocks in a list" else nn.ModuleList(same)
        self.down = BasicBlock(16, 32, 2, bug)
        self.head = nn.Linear(32, classes)
        self.bug = bug

    def forward(self, images: Tensor) -> Tensor:
        n, height, width, channels = images.shape
        if self.bug == "channels moved by a reshape of the batch":
            x = images.reshape(channels, n, height, width).transpose(0, 1)
        else:
            x = images.permute(0, 3, 1, 2)
        x = self.stem(x)
        for block in self.same:
            x = block(x)
        if self.bug == "trunk kept as data":
            x = x.data
        x = self.down(x)
        if self.bug == "pooled, then centered on the batch":
            x = x - x.mean(0, keepdim=True)
        return self.head(x.mean((2, 3)))


def colored_shapes(count: int) -> tuple[Tensor, Tensor]:
    images, labels = 0.3 * torch.randn(count, 16, 16, 3), torch.randint(0, 4, (count,))
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = torch.randint(1, 8, (2,)).tolist()
        color = torch.rand(3) + 0.5
        image[y : y + 6, x : x + 6] += color if label % 2 else 0
        if label >= 2:
            image[y : y + 6, x + 2 : x + 4] += 2 * color
            image[y + 2 : y + 4, x : x + 6] -= color
    return images, labels


@problem(
    "shapes-resnet",
    "image classification",
    bug("blocks in a list", "unregistered-parameters"),
    bug("one block multiplied by two", "repeated-module", "same"),
    bug("first norm used twice", "idle-modules", "bn2"),
    bug("branch overwritten by the shortcut", "discarded-results", "conv2"),
    bug("channels moved by a reshape of the batch", "mixed-samples"),
    bug("pooled, then centered on the batch", "mixed-samples", "mean"),
    bug("trunk kept as data", "blocked-path", "stem"),
    bug("validation left the model in eval mode", "evaluation-mode"),
    bug("every convolution starts from zero", "constant-init or stuck-zeros"),
    bug("decay of 5 instead of 5e-4", "devouring-decay"),
    part="fifth set",
)
def shapes_resnet(bug: str) -> Case:
    model = SmallResNet(bug)
    images, labels = colored_shapes(32)
    if bug == "validation left the model in eval mode":
        model.eval()
    if bug == "every convolution starts from zero":
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.zeros_(module.weight)
    decay = 5 if bug == "decay of 5 instead of 5e-4" else 5e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=decay)
    return Case(model, images, labels, F.cross_entropy, optimizer)


# Several tags per picture; a dict of tensors is the batch, and the loss is written by hand.


class TagNet(nn.Module):
    def __init__(self, bug: str, tags: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.GroupNorm(4, 24),
            nn.GELU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.GroupNorm(4, 48),
            nn.GELU(),
        )
        self.score = nn.Linear(48, tags)
        self.bug = bug

    def forward(self, image: Tensor) -> Tensor:
        if self.bug == "pixels divided as integers":
            image = (image.mul(80).add(120).clamp(0, 254).long() // 255).float()
        h = self.body(image).amax((2, 3))
        scores = self.score(h)
        if self.bug == "softmax over the tags":
            return scores.softmax(-1)
        if self.bug == "sigmoid in the model as well":
            return scores.sigmoid()
        if self.bug == "relu on the scores":
            return scores.relu()
        if self.bug == "scores transposed by a view":
            return scores.t().reshape(scores.shape)
        return scores


@problem(
    "tag-net",
    "multi-label classification",
    bug("softmax over the tags", "squashed-logits", "softmax"),
    bug("sigmoid in the model as well", "squashed-logits", "sigmoid"),
    bug("relu on the scores", "squashed-logits", "relu"),
    bug("scores transposed by a view", "mixed-samples or mixed-targets"),
    bug("pixels divided as integers", "idle-input", "image"),
    bug("logarithm of raw scores", "non-finite or unnormalized-scores"),
    bug("tags are -1 and 1", "unreachable-targets or targets-out-of-scale"),
    bug("summed over pictures and tags", "summed-loss", note=True),
    bug("minus forgotten", "negated-loss"),
    bug("scores compared as yes or no", "step-function or blocked-path"),
    part="fifth set",
)
def tag_net(bug: str) -> Case:
    model = TagNet(bug)
    tags = (torch.rand(40, 6) < 0.35).float()
    image = 0.5 * torch.randn(40, 3, 12, 12)
    for tag in range(6):
        image[:, tag % 3, 6 * (tag // 3) : 6 * (tag // 3) + 5, 2:7] += 1.5 * tags[:, tag, None, None]
    if bug == "tags are -1 and 1":
        tags = 2 * tags - 1

    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        p = scores if bug == "logarithm of raw scores" else torch.sigmoid(scores)
        if bug == "scores compared as yes or no":
            p = (p > 0.5).float() * 0.98 + 0.01 + 0 * scores
        each = tags * torch.log(p + 1e-7) + (1 - tags) * torch.log(1 - p + 1e-7)
        if bug == "summed over pictures and tags":
            return -each.sum()
        return each.mean() if bug == "minus forgotten" else -each.mean()

    return Case(model, {"image": image}, tags, loss, torch.optim.AdamW(model.parameters(), lr=3e-3))


# The mask of each picture, with skips between the two sides.


def double_conv(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class CellUNet(nn.Module):
    def __init__(self, bug: str, base: int = 8) -> None:
        super().__init__()
        self.enc1 = double_conv(1, base)
        self.enc2 = double_conv(base, 2 * base)
        self.middle = double_conv(2 * base, 4 * base)
        self.up2 = nn.ConvTranspose2d(4 * base, 2 * base, 2, 2)
        self.dec2 = double_conv(4 * base, 2 * base)
        self.up1 = nn.ConvTranspose2d(2 * base, base, 2, 2)
        self.dec1 = double_conv(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.bug != "middle under no_grad"):
            m = self.middle(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(m), e2], 1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], 1))
        logits = self.out(e1 if self.bug == "output reads the first encoder" else d1)
        if self.bug == "logits scaled by the batch's largest":
            logits = 4 * logits / logits.abs().max()
        return torch.sigmoid(logits) if self.bug == "sigmoid before the loss" else logits


@problem(
    "cell-unet",
    "segmentation",
    bug("output reads the first encoder", "discarded-results", "dec1"),
    bug("middle under no_grad", "blocked-path", "middle"),
    bug("sigmoid before the loss", "squashed-logits", "sigmoid"),
    bug("logits scaled by the batch's largest", "mixed-samples", "max"),
    bug("masks without the channel", "mixed-targets"),
    bug("masks from 0 to 255", "targets-out-of-scale or unreachable-targets"),
    bug("threshold leaves no cell", "single-answer", note=True),
    bug("prediction thresholded for the overlap", "step-function or constant-loss-term"),
    bug("overlap minimized", "negated-loss"),
    bug("optimizer has the decoder only", "forgotten-parameters", "enc1"),
    part="fifth set",
)
def cell_unet(bug: str) -> Case:
    model = CellUNet(bug)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    centers, radius = torch.rand(12, 2, 1, 1) * 10 + 3, torch.rand(12, 1, 1) * 3 + 2
    masks = ((grid - centers).norm(dim=1) < radius).float().unsqueeze(1)
    images = masks * (0.7 + 0.3 * torch.rand(12, 1, 1, 1)) + 0.3 * torch.randn(12, 1, 16, 16)
    if bug == "masks from 0 to 255":
        masks = masks * 255
    if bug == "threshold leaves no cell":
        masks = (masks > 1).float()
    if bug == "masks without the channel":
        masks = masks.squeeze(1)

    def loss(logits: Tensor, masks: Tensor) -> Tensor:
        each = logits.clamp(min=0) - logits * masks + F.softplus(-logits.abs())
        p = torch.sigmoid(logits)
        if bug == "prediction thresholded for the overlap":
            p = (p > 0.5).float()
        dice = (2 * (p * masks).sum() + 1) / (p.sum() + masks.sum() + 1)
        return dice if bug == "overlap minimized" else each.mean() + 1 - dice

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "optimizer has the decoder only" or name.startswith(("up", "dec", "out"))
    ]
    return Case(model, images, masks, loss, torch.optim.Adam(trained, lr=1e-3))
