"""Shapes that meet wrongly are seen wherever the loss is written, and a finding names the op that is to blame."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline.records import Finding
from leadline.records.report import Report
from tests.support.wiring import Function, TinyGPT, classes, features, mlp

WORDS = 30


def finding(report: Report, code: str) -> Finding | None:
    return next((each for each in report.findings if each.code == code), None)


def wiring_alarms(report: Report) -> list[str]:
    return [each.code for each in report.findings if each.code.startswith("D") and each.severity != "info"]


# Samples.


@pytest.mark.parametrize(
    ("mix", "op"),
    [
        (lambda h: h - h.mean(0), "mean"),
        (lambda h: h / h.abs().sum(0, keepdim=True), "sum"),
        (lambda h: h + h.amax(0).unsqueeze(0), "amax"),
        (lambda h: h.softmax(0), "softmax"),
    ],
)
def test_the_op_that_loses_the_axis_of_samples_is_named(mix, op):
    model = Function(lambda self, x: self.b(mix(self.a(x))), a=nn.Linear(8, 6), b=nn.Linear(6, 3))
    found = finding(leadline.check(model, features(), classes(), F.cross_entropy), "D901")
    assert found is not None
    assert f"op {op}" in found.message


def test_an_answer_that_depends_on_the_last_sample_alone_is_a_mixture():
    model = Function(lambda self, x: self.a(x[-1]).expand(len(x), 3), a=nn.Linear(8, 3))
    assert "D901" in wiring_alarms(leadline.check(model, features(), classes(), F.cross_entropy))


def test_binary_inputs_are_perturbed_like_others():
    model = Function(lambda self, x: self.a(x - x.mean(0)), a=nn.Linear(8, 3))
    bits = (features() > 0).float()
    assert "D901" in wiring_alarms(leadline.check(model, bits, classes(), F.cross_entropy))


@pytest.mark.parametrize("mixed", [False, True])
def test_samples_are_found_in_any_axis_of_the_output(mixed):
    def score_both(self, a, b):
        scores = torch.stack([self.a(a).squeeze(1), self.a(b).squeeze(1)])
        return scores - scores.mean(1, keepdim=True) if mixed else scores

    model = Function(score_both, a=nn.Linear(8, 1))
    batch = (features(), features().flip(0))
    report = leadline.check(model, batch, None, lambda s: -F.logsigmoid(s[0] - s[1]).mean())
    assert ("D901" in wiring_alarms(report)) is mixed


def test_rows_of_a_known_sequence_are_not_taken_for_one_sequence():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, 16)
            self.cell = nn.LSTM(16, 16, batch_first=True)
            self.head = nn.Linear(16, WORDS)

        def forward(self, tokens):
            return self.head(self.cell(self.embed(tokens))[0])

    torch.manual_seed(0)
    text = torch.randint(0, WORDS, (17, 6))
    report = leadline.check(
        TimeFirst(), text[:-1], text[1:], lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    )
    assert "D901" in wiring_alarms(report)


# Targets.


def by_hand(output, targets):
    return ((output - targets) ** 2).mean()


def weighted(output, targets):
    return (torch.sigmoid(output) * (1 - targets)).mean()


@pytest.mark.parametrize("loss", [by_hand, weighted])
def test_a_column_that_meets_a_vector_in_a_handwritten_loss_is_a_broadcast(loss):
    targets = features()[:, 0]
    found = finding(leadline.check(mlp(1), features(), targets, loss), "D908")
    assert found is not None
    assert found.severity == "error"
    assert "(32, 1) against (32,)" in found.message
    assert not wiring_alarms(leadline.check(mlp(1), features(), targets.unsqueeze(1), loss))


def test_masks_without_a_channel_meet_every_image():
    model = nn.Conv2d(1, 1, 3, padding=1)
    images, masks = torch.randn(4, 1, 6, 6), torch.rand(4, 6, 6)
    report = leadline.check(model, images, masks, lambda y, m: 1 - (y.sigmoid() * m).mean())
    assert "D908" in wiring_alarms(report)


def test_pairs_of_outputs_are_compared_on_purpose():
    def ranking(output, targets):
        better = (targets.unsqueeze(1) > targets).float()
        return (better * F.softplus(output - output.squeeze(1))).mean()

    assert not wiring_alarms(leadline.check(mlp(1), features(), features()[:, 0], ranking))


@pytest.mark.parametrize("scrambled", [False, True])
def test_channels_that_were_viewed_as_rows_are_scrambled(scrambled):
    def loss(scores, masks):
        rows = scores.reshape(-1, 4) if scrambled else scores.movedim(1, -1).reshape(-1, 4)
        return F.cross_entropy(rows, masks.flatten())

    torch.manual_seed(0)
    images, masks = torch.randn(4, 1, 6, 6), torch.randint(0, 4, (4, 6, 6))
    report = leadline.check(nn.Conv2d(1, 4, 3, padding=1), images, masks, loss)
    found = finding(report, "D908")
    assert (found is not None) is scrambled
    assert found is None or "along axis 1" in found.message


def test_numbers_that_are_all_the_same_are_a_note():
    report = leadline.check(mlp(1), features(), torch.ones(32, 1), F.binary_cross_entropy_with_logits)
    found = finding(report, "D911")
    assert found is not None
    assert found.severity == "info"


# Scores.


def test_every_loss_of_several_is_asked_what_it_expects():
    def loss(output, targets):
        odds = output[:, :3].exp()
        shares = odds / odds.sum(1, keepdim=True)
        return F.mse_loss(output[:, 3:], features()[:, :5]) + F.cross_entropy(shares, targets)

    assert "D910" in wiring_alarms(leadline.check(mlp(8), features(), classes(), loss))


def test_the_scale_of_every_loss_of_several_is_compared():
    def loss(output, targets):
        return F.cross_entropy(output[:, :3], targets[0]) + F.smooth_l1_loss(output[:, 3:], targets[1])

    boxes = 500 * torch.rand(32, 2)
    assert "D913" in wiring_alarms(leadline.check(mlp(5), features(), (classes(), boxes), loss))


@pytest.mark.parametrize("normalized", [False, True])
def test_ctc_expects_log_probabilities(normalized):
    def recognize(self, x):
        scores = self.a(x).transpose(0, 1)
        return scores.log_softmax(-1) if normalized else scores

    def loss(scores, words):
        return F.ctc_loss(scores, words, torch.full((4,), 20), torch.full((4,), 5))

    torch.manual_seed(0)
    model = Function(recognize, a=nn.Linear(6, 9))
    report = leadline.check(model, torch.randn(4, 20, 6), torch.randint(1, 9, (4, 5)), loss)
    assert ("D910" in wiring_alarms(report)) is not normalized


def test_a_loss_that_refuses_half_of_the_batch_is_asked_everything_else():
    weight = torch.rand(32, 3)

    def loss(output, targets):
        return -F.cross_entropy(output * weight, targets)

    report = leadline.check(mlp(), features(), classes(), loss)
    assert report.profile.question is not None
    assert report.profile.question.whole_over_halves is None
    assert "D909" in wiring_alarms(report)


# Padding.


def padded_text():
    torch.manual_seed(0)
    mask = torch.arange(10)[None, :] < torch.tensor([10, 4, 6, 8])[:, None]
    return torch.randint(1, WORDS, (4, 10)) * mask, mask


@pytest.mark.parametrize("ignored", [False, True])
def test_padding_may_not_change_an_answer_without_positions(ignored):
    def classify(self, text, mask):
        weight = mask.unsqueeze(-1).float() if ignored else torch.ones(4, 10, 1)
        return self.head((self.embed(text) * weight).sum(1) / weight.sum(1))

    model = Function(classify, embed=nn.Embedding(WORDS, 16), head=nn.Linear(16, 3))
    text, mask = padded_text()
    report = leadline.check(model, (text, mask), torch.tensor([0, 1, 2, 1]), F.cross_entropy)
    assert ("D905" in wiring_alarms(report)) is not ignored


@pytest.mark.parametrize("label", [0, -100])
def test_tags_of_padding_may_not_count(label):
    model = Function(
        lambda self, text, mask: self.head(self.embed(text)),
        embed=nn.Embedding(WORDS, 16),
        head=nn.Linear(16, 5),
    )
    text, mask = padded_text()
    tags = torch.randint(1, 5, (4, 10)).masked_fill(~mask, label)
    report = leadline.check(model, (text, mask), tags, lambda y, t: F.cross_entropy(y.transpose(1, 2), t))
    assert ("D905" in wiring_alarms(report)) is (label == 0)


# The ledger.


def test_a_result_that_is_not_assigned_is_thrown_away():
    def forget(self, x):
        h = self.a(x).relu()
        h + self.b(h).relu()
        return self.c(h)

    model = Function(forget, a=nn.Linear(8, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 3))
    found = finding(leadline.check(model, features(), classes(), F.cross_entropy), "D917")
    assert found is not None
    assert (found.severity, found.where) == ("warning", "b")


def test_a_head_of_another_task_is_a_note():
    def two_heads(self, x):
        h = self.a(x).relu()
        return self.c(h), self.d(h)

    model = Function(two_heads, a=nn.Linear(8, 8), c=nn.Linear(8, 3), d=nn.Linear(8, 8))
    report = leadline.check(model, features(), classes(), lambda y, t: F.cross_entropy(y[0], t))
    assert not wiring_alarms(report)


def test_an_input_of_which_only_the_shape_is_used_is_idle():
    def drop(self, x, extra):
        return self.a(x) + torch.zeros_like(extra)

    model = Function(drop, a=nn.Linear(8, 3))
    report = leadline.check(model, (features(), torch.randn(32, 3)), classes(), F.cross_entropy)
    found = finding(report, "D906")
    assert found is not None
    assert "input[1]" in found.message


def test_a_recurrent_encoder_behind_a_detach_gets_no_gradient():
    def detached(self, x):
        return self.head(self.cell(x)[0][:, -1].detach())

    torch.manual_seed(0)
    model = Function(detached, cell=nn.GRU(8, 8, batch_first=True), head=nn.Linear(8, 3))
    report = leadline.check(model, torch.randn(32, 5, 8), classes(), F.cross_entropy)
    found = finding(report, "B203")
    assert found is not None
    assert "cell" in found.where
    assert report.verdict == "fails"


def test_a_wiring_warning_decides_without_a_depth_axis():
    model = TinyGPT()
    tokens = torch.zeros(4, 16, dtype=torch.long)
    report = leadline.check(model, tokens, tokens, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    assert report.verdict != "trains"


# Sequences.


class Decoder(nn.Module):
    """An encoder-decoder in small: its inputs are its labels, one position later."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.cell = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, WORDS)
        self.shift = shift

    def forward(self, labels):
        late = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1)
        logits = self.head(self.cell(self.embed(late))[0])
        used = logits[:, : labels.size(1) - self.shift]
        return F.cross_entropy(used.flatten(0, 1), labels[:, self.shift :].flatten()), logits


@pytest.mark.parametrize("shift", [0, 1])
def test_labels_of_a_decoder_are_counted_from_what_a_position_sees(shift):
    torch.manual_seed(0)
    labels = torch.randint(1, WORDS, (4, 16))
    report = leadline.check(Decoder(shift), {"labels": labels}, None, lambda output: output[0])
    assert wiring_alarms(report) == (["D907"] if shift else [])


def test_labels_that_are_rolled_the_wrong_way_ask_for_the_past():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, 16)
            self.cell = nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, WORDS)

        def forward(self, tokens):
            return self.head(self.cell(self.embed(tokens))[0])

    torch.manual_seed(0)
    tokens = torch.randint(0, WORDS, (4, 16))
    report = leadline.check(Plain(), tokens, tokens.roll(1, 1), lambda y, t: F.cross_entropy(y.mT, t))
    found = finding(report, "D907")
    assert found is not None
    assert "before it" in found.message


# Places: what only looks like a mixture is not named.


class Encoder(nn.Module):
    """Eight samples, and heads of width eight: the axis of a head has the length of the batch by coincidence."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1)).log_softmax(0)


def test_an_axis_that_has_the_length_of_the_batch_by_coincidence_is_not_to_blame():
    torch.manual_seed(0)
    report = leadline.check(Encoder(), torch.randn(8, 6, 32), torch.arange(8) % 5, F.nll_loss)
    found = finding(report, "D901")
    assert found is not None
    assert "op log_softmax" in found.message


def test_a_fill_of_masked_scores_does_not_hide_what_moves():
    class Masked(nn.Module):
        def __init__(self, center):
            super().__init__()
            self.a, self.center = nn.Linear(8, 6), center

        def forward(self, x):
            h = self.a(x)
            h = h - h.mean(0) if self.center else h
            return h.masked_fill(torch.arange(6) > 4, -1e9)

    torch.manual_seed(0)
    targets = torch.arange(len(features())) % 5
    codes = [
        wiring_alarms(leadline.check(Masked(center), features(), targets, F.cross_entropy))
        for center in (0, 1)
    ]
    assert ("D901" in codes[0], "D901" in codes[1]) == (False, True)


@pytest.mark.parametrize("column", [False, True])
def test_a_loss_of_several_targets_that_broadcasts_inside_is_named(column):
    def heads(self, x):
        number = self.number(x)
        return {"number": number if column else number[:, 0], "kind": self.kind(x)}

    def loss(output, targets):
        error = F.mse_loss(output["number"], targets["number"])
        return error + F.cross_entropy(output["kind"], targets["kind"])

    model = Function(heads, number=nn.Linear(8, 1), kind=nn.Linear(8, 3))
    targets = {"number": features()[:, 0].clone(), "kind": classes()}
    with pytest.warns(UserWarning, match="target size") if column else contextlib.nullcontext():
        report = leadline.check(model, features(), targets, loss)
    assert ("D908" in wiring_alarms(report)) is column


# What the loss rewards.


@pytest.mark.parametrize(
    ("scores", "sign", "codes"),
    [
        (lambda h: h.log_softmax(1), 1, []),
        (lambda h: h.softmax(1), 1, ["D910"]),
        (lambda h: h.log_softmax(0), 1, ["D910"]),
        (lambda h: h.log_softmax(1), -1, ["D909"]),
    ],
    ids=["healthy", "probabilities", "over the batch", "negated"],
)
def test_a_divergence_expects_log_probabilities_along_the_axis_of_its_targets(scores, sign, codes):
    teacher = features()[:, :3].softmax(1)
    model = Function(lambda self, x: self.a(x), a=nn.Linear(8, 3))
    report = leadline.check(
        model, features(), None, lambda h: sign * F.kl_div(scores(h), teacher, reduction="batchmean")
    )
    assert [code for code in wiring_alarms(report) if code in ("D909", "D910")] == codes


def squares(output, targets):
    return ((output - targets) ** 2).mean()


def contrastive(output, similar):
    """A distance should be small where the label says "similar": the opposite of its label, and no mistake."""
    return (similar * output**2 + (1 - similar) * (1 - output).relu() ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "negated"),
    [
        (squares, False),
        (contrastive, False),
        (lambda output, targets: -(output * targets).mean(), False),
        (lambda output, targets: -squares(output, targets), True),
    ],
)
def test_only_a_hand_written_loss_without_a_minimum_is_negated(loss, negated):
    torch.manual_seed(0)
    report = leadline.check(mlp(1), features(), (features()[:, :1] > 0).float(), loss)
    assert ("D909" in wiring_alarms(report)) is negated


# The past, and results that are not used.


def test_a_past_that_rounding_hides_is_not_unused():
    class Faint(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn = nn.Embedding(WORDS, 16), nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, WORDS)

        def forward(self, tokens):
            h = self.embed(tokens)
            return self.head(h + 1e-9 * self.rnn(h)[0])

    torch.manual_seed(0)
    text = torch.randint(0, WORDS, (5, 13))
    report = leadline.check(
        Faint(), text[:, :-1], text[:, 1:], lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    )
    assert "D903" not in wiring_alarms(report)
    assert any("smaller than rounding" in gap.why for gap in report.coverage.gaps)


def test_the_second_of_two_heads_is_not_a_result_that_was_overwritten():
    model = Function(lambda self, x: (self.a(x), self.b(x)), a=mlp(3), b=mlp(3))
    report = leadline.check(model, features(), classes(), lambda out, y: F.cross_entropy(out[0], y))
    assert "D917" not in wiring_alarms(report)
