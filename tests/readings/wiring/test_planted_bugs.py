"""Planted wiring bugs are named with their code, and their healthy twins are not."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from tests.support.wiring import Function, TinyGPT, classes, features, mlp, own_loss, text, token_loss


def wiring_findings(*case, optimizer=None) -> dict[str, str]:
    """Codes of family D at warning or above, with their messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself warns about some of these bugs
        report = leadline.check(*case, optimizer=optimizer, rehearse=False)
    serious = [each for each in report.findings if each.code.startswith("D") and each.severity != "info"]
    return {each.code: each.message for each in serious}


def loop_variable(self, x):
    for layer in self.layers:
        y = layer(x).relu()
    return self.head(y)


def chained(self, x):
    for layer in self.layers:
        x = layer(x).relu()
    return self.head(x)


def first_layer_only(self, x):
    for _ in self.layers:
        x = self.layers[0](x).relu()
    return self.head(x)


def stack(forward) -> nn.Module:
    torch.manual_seed(0)
    return Function(forward, layers=nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), head=nn.Linear(8, 3))


def python_list() -> nn.Module:
    model = Function(chained, head=nn.Linear(8, 3))
    object.__setattr__(model, "layers", [nn.Linear(8, 8) for _ in range(2)])
    return model


def recurrent(*, batch_first: bool) -> nn.Module:
    torch.manual_seed(0)
    return Function(
        lambda self, x: self.head(self.cell(x)[0][:, -1]),
        cell=nn.LSTM(8, 16, batch_first=batch_first),
        head=nn.Linear(16, 3),
    )


def negated(output, targets):
    return -F.cross_entropy(output, targets)


def squared(output, targets):
    return (output - targets).square().mean()


X, Y = features(), classes()
SEQUENCE = torch.randn(8, 10, 8)
TOKENS, NEXT = text()
NUMBERS = torch.randn(32, 1)

SICK = {
    "D901": [
        (nn.Sequential(nn.Linear(8, 16), nn.Softmax(0), nn.Linear(16, 3)), X, Y, F.cross_entropy),
        (recurrent(batch_first=False), SEQUENCE, Y[:8], F.cross_entropy),
    ],
    "D902": [
        (TinyGPT(causal=False), (TOKENS, NEXT), None, own_loss),
        (TinyGPT(causal=False), TOKENS, NEXT, token_loss),
    ],
    "D904": [(TinyGPT(positions=False, layers=1), TOKENS, NEXT, token_loss)],
    "D906": [(mlp(), torch.zeros(32, 8), Y, F.cross_entropy)],
    "D907": [
        (TinyGPT(), (TOKENS, TOKENS.clone()), None, own_loss),
        (TinyGPT(), text(2)[0], text(2)[1], token_loss),
    ],
    "D908": [
        (mlp(1), X, NUMBERS.squeeze(1), F.mse_loss),
        (mlp(1), X, NUMBERS.squeeze(1), squared),
    ],
    "D909": [(mlp(), X, Y, negated)],
    "D910": [
        (mlp(), X, Y, F.nll_loss),
        (nn.Sequential(mlp(), nn.Softmax(1)), X, Y, F.nll_loss),
    ],
    "D911": [(mlp(), X, torch.zeros(32, dtype=torch.long), F.cross_entropy)],
    "D913": [(mlp(1), X, 1000 + 100 * NUMBERS, F.mse_loss)],
    "D915": [(python_list(), X, Y, F.cross_entropy)],
    "D916": [(stack(first_layer_only), X, Y, F.cross_entropy)],
    "D917": [(stack(loop_variable), X, Y, F.cross_entropy)],
    "D919": [
        (
            Function(lambda self, x: self.b(self.a(x).round()), a=nn.Linear(8, 8), b=nn.Linear(8, 3)),
            X,
            Y,
            F.cross_entropy,
        )
    ],
}

HEALTHY = {
    "an MLP": (mlp(), X, Y, F.cross_entropy),
    "a regression": (mlp(1), X, NUMBERS, F.mse_loss),
    "layers in a chain": (stack(chained), X, Y, F.cross_entropy),
    "a recurrent net": (recurrent(batch_first=True), SEQUENCE, Y[:8], F.cross_entropy),
    "a GPT with its own loss": (TinyGPT(), (TOKENS, NEXT), None, own_loss),
    "a GPT": (TinyGPT(), TOKENS, NEXT, token_loss),
    "log-probabilities": (nn.Sequential(mlp(), nn.LogSoftmax(1)), X, Y, F.nll_loss),
    "a batch norm": (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), mlp()), X, Y, F.cross_entropy),
    "a contrastive loss": (mlp(8), X, None, lambda z: F.cross_entropy(z @ z.t() / 8, torch.arange(len(z)))),
    "a straight-through rounding": (
        Function(
            lambda self, x: self.b(self.a(x) + (self.a(x).round() - self.a(x)).detach()),
            a=nn.Linear(8, 8),
            b=nn.Linear(8, 3),
        ),
        X,
        Y,
        F.cross_entropy,
    ),
    "as many features as samples": (mlp(), X[:8], Y[:8], F.cross_entropy),
}


@pytest.mark.parametrize(
    ("code", "case"),
    [(code, case) for code, cases in SICK.items() for case in cases],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_planted_bug_is_named(code, case):
    assert code in wiring_findings(*case)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_network_has_no_wiring_finding(name):
    assert wiring_findings(*HEALTHY[name]) == {}


def test_a_parameter_after_what_is_trained_is_missed_by_the_optimizer():
    model = mlp()
    assert "D914" in wiring_findings(
        model, X, Y, F.cross_entropy, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1)
    )


def test_training_only_the_head_is_a_choice():
    model = mlp()
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    assert wiring_findings(model, X, Y, F.cross_entropy, optimizer=head) == {}


def test_eval_mode_is_named_where_dropout_would_train():
    model = nn.Sequential(mlp(8), nn.Dropout(0.1), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert wiring_findings(model, X, Y, F.cross_entropy, optimizer=optimizer) == {}
    assert "D918" in wiring_findings(model.eval(), X, Y, F.cross_entropy, optimizer=optimizer)


def test_padding_that_the_attention_ignores_leaks():
    torch.manual_seed(0)
    tokens = torch.randint(1, 50, (4, 12))
    mask = torch.ones_like(tokens)
    mask[1:, 8:] = 0
    tokens = torch.where(mask == 1, tokens, torch.zeros_like(tokens))

    def encode(self, tokens, mask):
        return self.head(self.layer(self.embed(tokens), src_key_padding_mask=mask == 0))

    def ignore(self, tokens, mask):
        return self.head(self.layer(self.embed(tokens)))

    def model(forward):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return Function(forward, embed=nn.Embedding(50, 32), layer=layer, head=nn.Linear(32, 5))

    targets = torch.randint(0, 5, (4, 12))
    assert wiring_findings(model(encode), (tokens, mask), targets, token_loss) == {}
    assert "D905" in wiring_findings(model(ignore), (tokens, mask), targets, token_loss)


def test_a_leak_names_the_line_that_makes_it():
    report = leadline.check(TinyGPT(causal=False), TOKENS, NEXT, token_loss)
    leak = next(each for each in report.findings if each.code == "D902")
    assert leak.where == "layers.0.self_attn"
    assert leak.source is not None
    assert leak.source.file == "tests/support/wiring.py"


def test_a_network_that_copies_the_answer_learns_the_wrong_thing():
    model = TinyGPT(causal=False)
    report = leadline.check(model, TOKENS, NEXT, token_loss, torch.optim.AdamW(model.parameters(), lr=1e-3))
    assert report.verdict == "fails"
    assert report.confidence is None
    assert "LEARNS THE WRONG THING" in str(report)


def test_labels_from_which_a_decoder_makes_its_inputs_are_no_copy_task():
    def decode(self, source, labels):
        shifted = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1)
        mask = nn.Transformer.generate_square_subsequent_mask(labels.size(1))
        hidden = self.core(self.embed(source), self.embed(shifted), tgt_mask=mask)
        logits = self.head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(0)
    core = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    model = Function(decode, embed=nn.Embedding(50, 32), core=core, head=nn.Linear(32, 50))
    source = torch.randint(0, 50, TOKENS.shape)
    assert wiring_findings(model, (source, NEXT), None, own_loss) == {}


def test_reconstructing_the_own_input_is_the_task_of_an_autoencoder():
    model = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 32))
    images = torch.randn(64, 32)
    assert wiring_findings(model, images, images.clone(), F.mse_loss) == {}


def test_a_loss_that_is_not_finite_is_not_asked_anything():
    report = leadline.check(nn.Linear(8, 3), torch.full((32, 8), torch.nan), Y, F.cross_entropy)
    assert [each.code for each in report.findings if each.code.startswith("D")] == []
    assert any("not finite" in gap.why for gap in report.coverage.gaps)


class Reader(nn.Module):
    """One layer of attention whose queries are computed apart, so that it splits its biases, which start at zero."""

    def __init__(self, scale: nn.Parameter | float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.ask, self.head = nn.Linear(32, 32), nn.Linear(32, 50)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.scale = scale

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.scale * self.places(torch.arange(tokens.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return self.head(self.attention(self.ask(hidden), hidden, hidden, attn_mask=mask, is_causal=True)[0])


def test_biases_that_start_at_zero_do_not_hide_that_the_order_is_lost_and_a_closed_gate_does():
    assert "D904" in wiring_findings(Reader(0.0), TOKENS, NEXT, token_loss)
    assert "D904" not in wiring_findings(Reader(1.0), TOKENS, NEXT, token_loss)
    assert "D904" not in wiring_findings(Reader(nn.Parameter(torch.zeros(32))), TOKENS, NEXT, token_loss)


class Exchange(nn.Module):
    """Two streams that read each other, as the kinds of nodes of a graph do."""

    def __init__(self) -> None:
        super().__init__()
        self.to_second, self.to_first = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, first, second):
        second_update = self.to_second(first)
        return first + self.to_first(second), second + second_update


def test_a_result_that_is_returned_in_another_output_is_no_forgotten_assignment():
    torch.manual_seed(0)
    model = Function(
        lambda self, x: self.head(self.exchange(self.a(x), self.b(x))[0]),
        a=nn.Linear(8, 8),
        b=nn.Linear(8, 8),
        exchange=Exchange(),
        head=nn.Linear(8, 3),
    )
    report = leadline.check(model, X, Y, F.cross_entropy, rehearse=False)
    found = {each.name: each.severity for each in report.findings}
    assert found["discarded-results"] == "info"


def test_samples_that_unregistered_batch_norms_mix_are_blamed_on_the_list():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms, self.head = [nn.BatchNorm1d(8)], nn.Linear(8, 3)

        def forward(self, x):
            for norm in self.norms:
                x = norm(x)
            return self.head(x)

    report = leadline.check(Hidden(), X, Y, F.cross_entropy)
    causes = {each.code: each.explained_by for each in report.findings}
    assert causes["D901"] == "D915"
    assert causes["D915"] == ""
