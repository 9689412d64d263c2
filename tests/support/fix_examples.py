"""One small model per fix that has the problem the fix is for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from leadline.nn import LanguageModel, Options

WIDTH, CLASSES, BATCH = 16, 4, 32

Sick = Callable[[], Case]


def case_of(model: nn.Module, inputs: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Case:
    """The model with labels, a cross entropy and, if none is passed, Adam at a moderate rate."""
    targets = torch.randint(0, CLASSES, (len(inputs),), generator=torch.Generator().manual_seed(1))
    if optimizer is None:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    return Case(model, inputs, targets, F.cross_entropy, optimizer)


def vectors(scale: float = 1.0) -> Tensor:
    return scale * torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(2))


def plain(depth: int, activation: Callable[[], nn.Module] = nn.ReLU, gain: float | None = None) -> nn.Module:
    """A plain stack at PyTorch's default initialization, or at the given gain."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) for _ in range(depth)]
    if gain is not None:
        for layer in layers:
            nn.init.normal_(layer[0].weight, std=(gain / WIDTH) ** 0.5)
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


class Block(nn.Module):
    """x + W2 relu(W1 x), or x + relu(Wx)."""

    def __init__(self, *, coherent: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.coherent = coherent
        for layer in (self.inner, self.outer):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.inner(x))
        return x + y if self.coherent else x + self.outer(y)


def residual(depth: int, *, coherent: bool = False) -> nn.Module:
    return nn.Sequential(*[Block(coherent=coherent) for _ in range(depth)], nn.Linear(WIDTH, CLASSES))


class Tokens(nn.Module):
    """Token ids through a body of vectors to the mean's class."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(11, WIDTH), body
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.embedding(tokens)).mean(1))
        return y


def tokens() -> Tensor:
    return torch.randint(0, 11, (BATCH, 12), generator=torch.Generator().manual_seed(3))


def torch_encoder(depth: int, *, pre: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=pre
    )
    norm = nn.LayerNorm(WIDTH) if pre else None
    return Tokens(nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False))


class Squashed(nn.Module):
    """Probabilities for a loss that expects logits, next to a softmax that has to stay."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain(2, gain=2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(-1)


class Recurrent(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.cells, self.head = nn.RNN(4, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)
        nn.init.normal_(self.cells.weight_hh_l0, std=(gain / WIDTH) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.cells(x.repeat(1, 4).unflatten(1, (16, 4)))[0][:, -1])
        return y


class LogOfRelu(nn.Module):
    """The logarithm of what may be zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().log()


def undefined() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), LogOfRelu(), nn.Linear(WIDTH, CLASSES))


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = plain(3, gain=2.0)[:-1], nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).detach())
        return y


def _rate(lr: float) -> Case:
    model = plain(3, gain=2.0)
    return case_of(model, vectors(), torch.optim.Adam(model.parameters(), lr=lr))


def _exploding() -> Case:
    model = plain(12, gain=8.0)
    return case_of(model, vectors(), torch.optim.SGD(model.parameters(), lr=0.1))


def _devoured() -> Case:
    model = nn.Sequential(*plain(3, gain=2.0)[:-1], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    return case_of(model, vectors(), torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=10.0))


def _frozen() -> Case:
    model = plain(3, gain=2.0)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim < 2)
    return case_of(model, vectors())


def _incomplete() -> Case:
    model = plain(3, gain=2.0)
    return case_of(model, vectors(), torch.optim.Adam(model[:2].parameters(), lr=1e-3))


class Hidden(nn.Module):
    """Keeps its layers in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2)]
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _hidden() -> Case:
    return case_of(Hidden(), vectors())


def _broadcast() -> Case:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    x = vectors()
    return Case(model, x, x[:, 0].clone(), _squared, torch.optim.Adam(model.parameters(), lr=1e-3))


class Unscaled(nn.Module):
    """Attention without the factor of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=0.125)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).transpose(-2, -1)).softmax(-1)
        return self.head((x + weights @ self.value(x)).mean(1))


def _unscaled() -> Case:
    model = Unscaled()
    x, y = torch.randn(16, 8, 64), torch.arange(16) % 4
    return Case(model, x, y, nn.functional.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


class NextToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(12, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, 12),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


def _own_position() -> Case:
    model, tokens = NextToken(), torch.randint(0, 12, (8, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Case(model, tokens, tokens.clone(), _token_loss, optimizer)


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _squared(output: Tensor, targets: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about this very bug
        return F.mse_loss(output, targets)


def _unnormalized() -> Case:
    return replace(case_of(plain(2, gain=2.0), vectors()), loss=F.nll_loss)


def _negated() -> Case:
    return replace(case_of(plain(2, gain=2.0), vectors()), loss=_negated_loss)


def _negated_loss(output: Tensor, targets: Tensor) -> Tensor:
    return -F.cross_entropy(output, targets)


def _constant() -> Case:
    model = plain(3, gain=2.0)
    nn.init.constant_(model[1][0].weight, 0.05)
    return case_of(model, vectors())


def _lopsided() -> Case:
    model = plain(4, gain=2.0)
    model[1][0].weight.data *= 256
    model[1][0].bias.data *= 256
    model[2][0].weight.data /= 256
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    return case_of(model, vectors(), optimizer)


def _dead() -> Case:
    model = plain(4, gain=2.0)
    for layer in model[:-1]:
        nn.init.constant_(layer[0].bias, -8.0)
    return case_of(model, vectors())


def _head() -> Case:
    model = plain(3, gain=2.0)
    nn.init.normal_(model[-1].weight, std=20.0)
    return case_of(model, vectors())


def _hot() -> Case:
    model = torch_encoder(3, pre=True)
    for layer in model.body.layers:
        layer.self_attn.in_proj_weight.data[: 2 * WIDTH] *= 30
    return case_of(model, tokens())


def _embedding() -> Case:
    model = torch_encoder(4, pre=True)
    model.embedding.weight.data *= 1e-3
    return case_of(model, tokens())


def _narrow() -> Case:
    model = plain(3, gain=2.0).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    case = case_of(model, vectors().to(torch.bfloat16), optimizer)
    return Case(case.model, case.inputs, case.targets, _float_loss, optimizer)


def _float_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.float(), targets)


def _huge_init() -> Case:
    model = plain(4)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(30)
    return case_of(model, vectors())


def _wound_up() -> Case:
    case = case_of(plain(3, gain=2.0), vectors())
    sgd = torch.optim.SGD(case.model.parameters(), lr=0.1, momentum=0.999)
    return Case(case.model, case.inputs, case.targets, case.loss, sgd)


def _dropped() -> Case:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.98)) for _ in range(4)]
    return case_of(nn.Sequential(*layers, nn.Linear(WIDTH, 7)), vectors())


def _far_targets() -> Case:
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)), vectors()
    targets = 500 + 100 * x[:, :1]
    return Case(model, x, targets, F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def _half() -> Case:
    model = plain(16, gain=0.8).to(torch.float16)
    case = case_of(model, vectors().to(torch.float16))
    return Case(case.model, case.inputs, case.targets, _float_loss, case.optimizer)


def _own_post() -> Case:
    model = LanguageModel(11, WIDTH, 2, 7, scheme="post", max_len=12, options=Options(positions="learned"))
    ids = tokens()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case(model, ids, ids.roll(-1, 1), _token_loss, optimizer)


def _post() -> Case:
    return case_of(torch_encoder(12, pre=False), tokens())


def _default() -> Case:
    return case_of(plain(16), vectors())


def _token_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def _seeded(build: Sick) -> Sick:
    def make() -> Case:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build()

    return make


FIX_EXAMPLES: dict[str, tuple[Sick, Sequence[str]]] = {
    "balance": (_lopsided, ("B204", "U505", "U502", "U503", "U523")),
    "critical-init": (_default, ("I302", "B201")),
    "lsuv-init": (_default, ("I302", "B201")),
    "recurrent-init": (lambda: case_of(Recurrent(0.05), vectors()), ("B207", "B201", "F106", "I301")),
    "learning-rate": (lambda: _rate(3.0), ("U521",)),
    "warm-up": (_exploding, ("U504", "U502", "U501", "U523")),
    "clipping": (_exploding, ("U523", "U502", "U501", "U521")),
    "weight-decay": (_devoured, ("U524",)),
    "thaw": (_frozen, ("B208",)),
    "complete-optimizer": (_incomplete, ("D914",)),
    "register-modules": (_hidden, ("D915",)),
    "match-targets": (_broadcast, ("D908",)),
    "log-probabilities": (_unnormalized, ("D910",)),
    "scale-logits": (_unscaled, ("D921",)),
    "shift-targets": (_own_position, ("D907",)),
    "rewire": (_negated, ()),
    "default-init": (_huge_init, ("U530", "F101", "U531")),
    "usual-options": (_wound_up, ("U504", "U521", "U523", "U509", "U530", "U531")),
    "plain-adam": (_wound_up, ("U504", "U521", "U523", "U509", "U530", "U531")),
    "lower-dropout": (_dropped, ("U509", "U525", "U531", "F110")),
    "scaled-targets": (_far_targets, ("D913",)),
    "standardize": (lambda: case_of(plain(3, gain=2.0), vectors(1e-3)), ("F109",)),
    "full-precision": (_narrow, ("U506",)),
    "scaled-head": (_head, ("I308",)),
    "scaled-attention": (_hot, ("F107",)),
    "scaled-embedding": (_embedding, ("F108", "F101")),
    "branch-scale": (lambda: case_of(residual(12), vectors()), ("R401", "F101")),
    "declone": (lambda: case_of(torch_encoder(4, pre=True), tokens()), ("I303",)),
    "add-skips": (lambda: case_of(plain(20), vectors()), ("B201", "F106")),
    "raw-logits": (lambda: case_of(Squashed(), vectors()), ("I309",)),
    "swap-activation": (lambda: case_of(plain(12, nn.Sigmoid), vectors()), ("B201",)),
    "pre-norm": (_post, ("R402",)),
    "deep-norm": (_post, ("R402",)),
    "keel": (_post, ("R402",)),
    "peri-norm": (_post, ("R402",)),
    "qk-norm": (_hot, ("F107",)),
    "rescheme": (_own_post, ("R402",)),
    "zero-mean": (lambda: case_of(residual(12, coherent=True), vectors()), ("F105", "F101")),
    "insert-norm": (lambda: case_of(plain(16, gain=0.5), vectors()), ("F102", "I301")),
    "connect": (lambda: case_of(Cut(), vectors()), ()),
    "finite-op": (lambda: case_of(undefined(), vectors()), ()),
    "loss-scale": (_half, ()),
}
"""By name of the fix: the model, and findings of which the fix must remove one; empty for fixes that only advise."""


def sick(name: str) -> Case:
    """The example of a fix, the same each time."""
    return _seeded(FIX_EXAMPLES[name][0])()
