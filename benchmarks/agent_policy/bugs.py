"""The mistakes: which line of which healthy script is replaced by what."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
# Derived: from the number of classes, and from the definition of the score where it is a share of variance.
GUESSES = {
    "compress": 0.0,
    "digits": 0.1,
    "houses": 0.0,
    "letters": 1 / 12,
    "sequences": 0.5,
    "sets": 0.51,
    "spirals": 1 / 3,
    "tower": 0.25,
}
"""The score of each script that predicts the mean or guesses a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One mistake in one script."""

    program: str
    name: str
    old: str
    new: str

    @property
    def key(self) -> str:
        return f"{self.program}/{self.name}"

    @property
    def is_held_out(self) -> bool:
        return sha256(self.key.encode()).digest()[0] % 2 == 1

    def source(self) -> str:
        """The script with the mistake."""
        text = (PROGRAMS / f"{self.program}.py").read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.key}: {self.old!r} must occur once in the script")
        return text.replace(self.old, self.new)


def _bug(program: str, name: str, old: str, new: str) -> Bug:
    return Bug(program=program, name=name, old=old, new=new)


BUGS = [
    _bug(
        "spirals",
        "softmax-before-cross-entropy",
        "self.head(self.body(x))",
        "self.head(self.body(x)).softmax(1)",
    ),
    _bug("spirals", "rate-too-large", "lr=0.003", "lr=0.8"),
    _bug("spirals", "rate-too-small", "lr=0.003", "lr=1e-7"),
    _bug("spirals", "optimizer-of-the-head", "Adam(model.parameters()", "Adam(model.head.parameters()"),
    _bug("spirals", "no-zero-grad", "        optimizer.zero_grad()\n", ""),
    _bug("spirals", "negated-loss", "loss = criterion(", "loss = -criterion("),
    _bug(
        "spirals",
        "zero-weights",
        "model = Classifier()",
        "model = Classifier()\nfor weight in model.parameters():\n    nn.init.zeros_(weight)",
    ),
    _bug("houses", "broadcast-column", "self.out(x).squeeze(1)", "self.out(x)"),
    _bug("houses", "decay-too-large", "weight_decay=0.01", "weight_decay=80.0"),
    _bug("houses", "dropout-too-large", "net = PriceModel(dropout=0.0)", "net = PriceModel(dropout=0.98)"),
    _bug(
        "houses",
        "detached-features",
        "self.drop(F.relu(self.fc2(x)))",
        "self.drop(F.relu(self.fc2(x))).detach()",
    ),
    _bug("houses", "features-out-of-scale", "net(features)", "net(features * 2000)"),
    _bug(
        "digits",
        "frozen-features",
        "model = ConvNet()",
        "model = ConvNet()\n    for weight in model.parameters():\n        weight.requires_grad = False\n    model.classifier.requires_grad_(True)",
    ),
    _bug("digits", "evaluation-mode", "model.train()", "model.eval()"),
    _bug("digits", "sorted-data", "torch.randperm(len(train_images))", "train_labels.argsort()"),
    _bug("digits", "decay-too-large", "weight_decay=1e-4", "weight_decay=3.0"),
    _bug("letters", "no-causal-mask", "is_causal=True", "is_causal=False"),
    _bug("letters", "targets-not-shifted", "batch[:, :-1], batch[:, 1:]", "batch[:, :-1], batch[:, :-1]"),
    _bug(
        "letters",
        "unregistered-blocks",
        "nn.ModuleList([Block(WIDTH) for _ in range(layers)])",
        "[Block(WIDTH) for _ in range(layers)]",
    ),
    _bug(
        "letters",
        "wrong-weights-in-optimizer",
        "AdamW(model.parameters()",
        "AdamW(LanguageModel().parameters()",
    ),
    _bug("tower", "no-skips", "return x + self.linear2(", "return self.linear2("),
    _bug(
        "tower",
        "large-weights",
        "    model = Tower()\n",
        "    model = Tower()\n    for weight in model.parameters():\n        if weight.dim() == 2:\n            nn.init.normal_(weight, std=3.0)\n",
    ),
    _bug("tower", "rate-too-large", "lr=1e-3", "lr=0.5"),
    _bug("compress", "detached-code", "self.decoder(code)", "self.decoder(code.detach())"),
    _bug("compress", "decoder-left-out", "Adam(model.parameters()", "Adam(model.encoder.parameters()"),
    _bug(
        "sequences",
        "last-state-of-padding",
        "states[torch.arange(len(tokens)), lengths - 1]",
        "states[:, -1]",
    ),
    _bug(
        "sequences",
        "sigmoid-before-logits-loss",
        "self.head(last).squeeze(-1)",
        "self.head(last).squeeze(-1).sigmoid()",
    ),
    _bug("sequences", "not-batch-first", "nn.LSTM(width, width, batch_first=True)", "nn.LSTM(width, width)"),
    _bug("sets", "dropout-too-large", "dropout=0.1", "dropout=0.97"),
    _bug("sets", "rate-too-large", "rate=2e-3", "rate=1.0"),
]
