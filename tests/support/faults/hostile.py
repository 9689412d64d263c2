"""Names that try to be obeyed: by a terminal, a browser, a spreadsheet, a build server, or Python itself."""

from __future__ import annotations

from html.parser import HTMLParser

NAMES = (
    "\x1b]8;;http://evil\x07link\x1b]8;;\x07",
    "\x1b[2J\x9b31m\r\n\0",
    "[bold red]x[/]",
    "<script>alert(1)</script>",
    "\u202egnp",
    '"); open("pwned", "w"); ("',
    "'\\",
    '=HYPERLINK("http://x")',
    "\n::error::x\n##[error]x",
    "{{7*7}}%s{0}",
)

TARGET = f"""
import torch
from torch import nn

NAMES = {NAMES!r}

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        for copy in range(2):
            for name in NAMES:
                self.add_module(name + str(copy), nn.Sequential(nn.Linear(6, 6), nn.ReLU()))

    def forward(self, x):
        for module in self._modules.values():
            x = module(x)
        return x

def make_case():
    model = type(NAMES[3] + NAMES[0] + NAMES[4], (Stack,), {{}})()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, torch.randn(8, 6), torch.randn(8, 6), nn.functional.mse_loss, optimizer

def crash():
    raise ValueError(NAMES[0] + NAMES[1] + NAMES[4])
"""


def orders(text: str) -> list[str]:
    """Characters that a terminal would obey, or that hide or reorder others; line ends are what they are."""
    return sorted({char for char in text if not char.isprintable() and char != "\n"})


class Elements(HTMLParser):
    """The elements of a page and what its attributes say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.handlers += [name for name, _ in attributes if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False
