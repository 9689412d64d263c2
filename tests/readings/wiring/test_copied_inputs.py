"""A token model that is asked for the tokens it reads copies them, unless it must compress or guess them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leadline

WORDS = 12


def severity_of(report, code):
    return next((each.severity for each in report.findings if each.code == code), None)


class Tagger(nn.Module):
    """Names the token at each position, from both sides; or from one summary of the sequence, as autoencoders do."""

    def __init__(self, *, has_bottleneck):
        super().__init__()
        self.has_bottleneck = has_bottleneck
        self.embed = nn.Embedding(WORDS, 16)
        self.reader = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.writer = nn.GRU(32, 16, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens):
        states = self.reader(self.embed(tokens))[0]
        if self.has_bottleneck:
            states = states.mean(1, keepdim=True).expand(-1, tokens.size(1), -1)
        return self.head(self.writer(states)[0])


@pytest.mark.parametrize(
    ("has_bottleneck", "masked", "severity"), [(False, 0.0, "error"), (False, 0.3, None), (True, 0.0, "info")]
)
def test_a_network_that_is_asked_for_the_tokens_it_reads_copies_them_unless_it_must_compress_or_guess(
    has_bottleneck, masked, severity
):
    torch.manual_seed(0)
    tokens = torch.randint(1, WORDS, (8, 16))
    inputs = tokens.masked_fill(torch.rand(tokens.shape) < masked, 0)
    network = Tagger(has_bottleneck=has_bottleneck)
    report = leadline.check(network, inputs, tokens, lambda y, t: F.cross_entropy(y.mT, t))
    assert severity_of(report, "D907") in ({severity} if severity else {None, "info"})


class WrappingDecoder(nn.Module):
    """A decoder whose first input is the last label, as the language code of MBart is."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = (
            nn.Embedding(WORDS, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, WORDS),
        )

    def forward(self, labels):
        logits = self.head(self.cell(self.embed(labels.roll(1, 1)))[0])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def test_a_decoder_whose_first_input_is_its_last_label_copies_nothing():
    torch.manual_seed(0)
    labels = torch.randint(1, WORDS, (4, 16))
    report = leadline.check(WrappingDecoder(), {"labels": labels}, None, lambda output: output[0])
    assert severity_of(report, "D907") in (None, "info")
