"""First programs: wines by their chemistry, digits with residual blocks, ratings of movies, houses with three tasks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_wine
from torch import Tensor, nn, optim

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Wines: a perceptron of four layers on sklearn's table.


class WineNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(13, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 32)
        self.fc4 = nn.Linear(32, 3)
        self.dropout = nn.Dropout(0.1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x))
        if self.bug == "torch.tensor around the hidden layer":
            x = torch.tensor(x)
        x = self.dropout(F.relu(self.fc2(x)))
        x = F.relu(self.fc2(x) if self.bug == "second layer called in place of the third" else self.fc3(x))
        x = self.fc4(x)
        if self.bug == "softmax in the last line of forward":
            return F.softmax(x, dim=1)
        if self.bug == "log_softmax down the rows":
            return F.log_softmax(x, dim=0)
        if self.bug == "predicted class made a leaf":
            return torch.argmax(x, dim=1).float().requires_grad_()
        return x


@problem(
    "wine-mlp",
    "classification",
    bug("softmax in the last line of forward", "squashed-logits", "softmax"),
    bug("log_softmax down the rows", "mixed-samples", "softmax"),
    bug("first rows of the sorted file", "single-answer"),
    bug(
        "predicted class made a leaf", "blocked-path or step-function or discarded-results or motionless-step"
    ),
    bug("second layer called in place of the third", "idle-modules", "fc3", note=True),
    bug("filter of the names turned around", "forgotten-parameters", "weight"),
    bug("last layer replaced after the optimizer", "forgotten-parameters", "fc4"),
    bug("torch.tensor around the hidden layer", "blocked-path", "fc1"),
    part="sixth set",
)
def wine_mlp(bug: str) -> Case:
    net = WineNet(bug)
    data = load_wine()
    x = torch.tensor(data.data, dtype=torch.float32)
    y = torch.tensor(data.target)
    x = (x - x.mean(0)) / x.std(0)
    rows = torch.arange(48) if bug == "first rows of the sorted file" else torch.randperm(len(y))[:48]
    criterion: nn.Module = nn.CrossEntropyLoss()
    labels = y[rows]
    if bug == "predicted class made a leaf":
        criterion, labels = nn.MSELoss(), labels.float()
    params = list(net.parameters())
    if bug == "filter of the names turned around":
        params = [p for name, p in net.named_parameters() if "weight" not in name]
    optimizer = optim.Adam(params, lr=0.005)
    if bug == "last layer replaced after the optimizer":
        net.fc4 = nn.Linear(net.fc4.in_features, 3)
    return Case(net, x[rows], labels, criterion, optimizer)


# Digits: a small residual network with batch norm.


class BasicBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int = 1, bug: str = "") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.bug == "shortcut added without an underscore":
            out.add(self.shortcut(x))
        else:
            out += self.shortcut(x)
        return F.relu(out)


class DigitResNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        if bug == "one block multiplied by two":
            self.layer1 = nn.Sequential(*[BasicBlock(16, 16)] * 2)
        else:
            self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = BasicBlock(16, 16, bug=bug)
        self.layer3 = BasicBlock(16, 32, 2, bug)
        self.fc = nn.Linear(32 * 4, 10)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        out = (out > 0).float() if self.bug == "stem compared with zero" else F.relu(out)
        features = [self.layer1(out)]
        features.append(self.layer2(features[-1]))
        out = self.layer3(features[0 if self.bug == "third stage reads the first" else -1])
        out = F.avg_pool2d(out, 2)
        if self.bug == "channels permuted before flattening":
            out = out.permute(1, 0, 2, 3)
        return self.fc(out.reshape(x.size(0), -1))


@problem(
    "digits-resnet",
    "residual CNN",
    bug("channels permuted before flattening", "mixed-samples or scrambled-axes"),
    bug("shortcut added without an underscore", "discarded-results", "shortcut"),
    bug("one block multiplied by two", "repeated-module", "layer1", note=True),
    bug("backbone frozen without pretrained weights", "frozen-random-weights", note=True),
    bug("batch norms kept in eval mode", "evaluation-mode", note=True),
    bug("stem compared with zero", "step-function or blocked-path"),
    bug("third stage reads the first", "discarded-results", "layer2"),
    bug("nll_loss of probabilities", "unnormalized-scores", "nll_loss"),
    bug("summed over the batch with plain SGD", "summed-loss"),
    part="sixth set",
)
def digits_resnet(bug: str) -> Case:
    model = DigitResNet(bug)
    images, labels = load_digits(return_X_y=True)
    chosen = torch.randperm(len(labels))[:64]
    images = torch.tensor(images, dtype=torch.float32)[chosen].view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)[chosen]
    if bug == "backbone frozen without pretrained weights":
        for param in model.parameters():
            param.requires_grad = False
        model.fc = nn.Linear(model.fc.in_features, 10)
    if bug == "batch norms kept in eval mode":
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        if bug == "nll_loss of probabilities":
            return F.nll_loss(F.softmax(logits, dim=1), labels)
        reduction = "sum" if bug == "summed over the batch with plain SGD" else "mean"
        return F.cross_entropy(logits, labels, reduction=reduction)

    trainable = filter(lambda p: p.requires_grad, model.parameters())
    return Case(model, images, labels, loss, optim.SGD(trainable, lr=0.05, momentum=0.9))


# Ratings: factors and biases of users and movies.


class MatrixFactorization(nn.Module):
    def __init__(self, bug: str, n_users: int = 40, n_items: int = 30, n_factors: int = 12) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(n_users, n_factors)
        self.item_factors = nn.Embedding(n_items, n_factors)
        nn.init.normal_(self.user_factors.weight, std=0.3)
        nn.init.normal_(self.item_factors.weight, std=0.3)
        self.item_biases = nn.Embedding(n_items, 1)
        if bug == "user biases never filled":
            self.user_biases = nn.Parameter(torch.empty(n_users))
        else:
            self.user_biases = nn.Parameter(torch.zeros(n_users))
        self.mean = nn.Parameter(torch.tensor(3.0))
        self.bug = bug

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        if self.bug == "item table asked for the user":
            item = user % 30
        u, v = self.user_factors(user), self.item_factors(item)
        dot = (u @ v.t()).sum(1) if self.bug == "matrix product without its diagonal" else (u * v).sum(1)
        bias = self.item_biases(item)
        if self.bug != "bias keeps its column":
            bias = bias.squeeze(1)
        rating = self.mean + self.user_biases[user] + bias + dot
        if self.bug == "whole stars only":
            return rating.round().clamp(1, 5)
        if self.bug == "sigmoid for one to five stars":
            return torch.sigmoid(rating)
        return rating


@problem(
    "movie-factors",
    "recommender",
    bug("bias keeps its column", "mixed-samples or mixed-targets"),
    bug("item table asked for the user", "idle-input", "item", note=True),
    bug("matrix product without its diagonal", "mixed-samples"),
    bug("user biases never filled", "uninitialized-memory", "user_biases"),
    bug("whole stars only", "step-function", "round"),
    bug("sigmoid for one to five stars", "unreachable-targets", "sigmoid"),
    bug("factors given to the optimizer twice", "doubled-parameters", "factors"),
    bug("everyone asked for the average", "single-answer"),
    part="sixth set",
)
def movie_factors(bug: str) -> Case:
    model = MatrixFactorization(bug)
    taste, style = torch.randn(40, 3), torch.randn(30, 3)
    user, item = torch.randint(0, 40, (64,)), torch.randint(0, 30, (64,))
    rating = (3 + (taste[user] * style[item]).sum(1) * 0.8 + 0.3 * taste[user, 0]).clamp(1, 5)
    if bug == "everyone asked for the average":
        rating = rating.mean().repeat(64)
    params = list(model.parameters())
    if bug == "factors given to the optimizer twice":
        params += [*model.user_factors.parameters(), *model.item_factors.parameters()]
    optimizer = optim.Adam(params, lr=0.01)
    return Case(model, {"user": user, "item": item}, rating, nn.MSELoss(), optimizer)


# Houses: the price, whether it is sold, and its kind, from one trunk, weighted by learned uncertainties.


class HouseNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        heads = {"price": nn.Linear(48, 1), "sold": nn.Linear(48, 1), "kind": nn.Linear(48, 4)}
        self.heads = heads if bug == "heads in a plain dict" else nn.ModuleDict(heads)
        if bug == "uncertainties in a list of tensors":
            self.log_vars = [torch.zeros(1, requires_grad=True) for _ in range(3)]
        else:
            self.log_vars = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(3)])
        self.bug = bug

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shared = self.trunk(x)
        out = {name: head(shared) for name, head in self.heads.items()}
        if self.bug != "price keeps its column":
            out["price"] = out["price"].squeeze(-1)
        out["sold"] = out["sold"].squeeze(-1)
        if self.bug == "sigmoid before the loss with logits":
            out["sold"] = torch.sigmoid(out["sold"])
        return out


@problem(
    "house-tasks",
    "multi-task network",
    bug("sigmoid before the loss with logits", "squashed-logits", "sigmoid"),
    bug("price in dollars", "targets-out-of-scale"),
    bug("price keeps its column", "mixed-targets", "(48, 1)", "(48,)"),
    bug("first loss overwritten by the second", "discarded-results", "price"),
    bug("losses weighted as numbers", "blocked-path or discarded-results or constant-loss-term"),
    bug("uncertainties in a list of tensors", "unregistered-parameters", "3"),
    bug("heads in a plain dict", "unregistered-parameters"),
    bug("kind read from a column of fractions", "single-answer"),
    part="sixth set",
)
def house_tasks(bug: str) -> Case:
    model = HouseNet(bug)
    x = torch.randn(48, 8)
    price = x[:, 0] + 0.5 * x[:, 1] * x[:, 2]
    if bug == "price in dollars":
        price = 80_000 * price + 300_000
    sold = (x[:, 3] - x[:, 4] > 0).float()
    kind = x[:, 4:8].argmax(1)
    if bug == "kind read from a column of fractions":
        kind = torch.rand(48).long()
    mse, bce, ce = nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss()

    def loss(out: dict[str, Tensor], targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        losses = [mse(out["price"], targets[0]), bce(out["sold"], targets[1]), ce(out["kind"], targets[2])]
        if bug == "losses weighted as numbers":
            losses = [each.item() for each in losses]
        weighted = [torch.exp(-s) * each + s for s, each in zip(model.log_vars, losses, strict=True)]
        total = weighted[0]
        total = weighted[1] if bug == "first loss overwritten by the second" else total + weighted[1]
        return (total + weighted[2]).squeeze()

    return Case(model, x, (price, sold, kind), loss, optim.Adam(model.parameters(), lr=3e-3))
