"""Sequences step by step: letters with an LSTM, tags of packed sentences, sales with causal convolutions, captions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.wiring.problem import bug, problem
from benchmarks.wiring.problems.sentences import LETTERS, windows_of_text
from leadline import Case

# Letters with two LSTMs; time is the first axis.


class LetterLSTM(nn.Module):
    def __init__(self, bug: str, wide: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), wide)
        both = bug == "reads in both directions"
        self.lstm1 = nn.LSTM(
            wide,
            wide // 2 if both else wide,
            batch_first=bug == "batch_first although time is first",
            bidirectional=both,
        )
        self.lstm2 = nn.LSTM(wide, wide)
        self.drop = nn.Dropout(0.95 if bug == "share to keep given as share to drop" else 0.05)
        self.decoder = nn.Linear(wide, len(LETTERS))
        self.bug = bug

    def forward(self, letters: Tensor) -> Tensor:
        h = self.embed(letters)
        if self.bug == "embedding through numpy":
            h = torch.from_numpy(h.detach().cpu().numpy())
        if self.bug == "state not carried along":
            steps = [self.lstm2(self.lstm1(each[None])[0])[0] for each in h]
            return self.decoder(self.drop(torch.cat(steps)))
        h, _ = self.lstm1(h)
        out, _ = self.lstm2(h)
        if self.bug == "decoder reads the first layer":
            out = h
        return self.decoder(self.drop(out))


@problem(
    "letter-lstm",
    "recurrent language model",
    bug("batch_first although time is first", "mixed-samples", "lstm1"),
    bug("reads in both directions", "visible-answer"),
    bug("share to keep given as share to drop", "drowning-dropout", "drop"),
    bug("embedding through numpy", "blocked-path", "embed"),
    bug("state not carried along", "unused-past"),
    bug("decoder reads the first layer", "discarded-results", "lstm2"),
    bug("targets are the letters read", "shifted-targets"),
    bug("targets two letters ahead", "shifted-targets"),
    bug("scores viewed as (batch, letters, time)", "mixed-targets or shifted-targets"),
    bug("embedding in two optimizers", "doubled-parameters", "embed.weight"),
    bug("decoder not in the optimizer", "forgotten-parameters", "decoder.weight"),
    part="fifth set",
)
def letter_lstm(bug: str) -> Case:
    model = LetterLSTM(bug)
    text = windows_of_text(12, 22).t().contiguous()
    ahead = {"targets are the letters read": 0, "targets two letters ahead": 2}.get(bug, 1)
    letters, following = text[:20], text[ahead : ahead + 20]

    def loss(scores: Tensor, following: Tensor) -> Tensor:
        if bug == "scores viewed as (batch, letters, time)":
            return F.cross_entropy(scores.view(12, len(LETTERS), 20), following.t())
        return F.cross_entropy(scores.view(-1, len(LETTERS)), following.reshape(-1))

    skipped = "decoder" if bug == "decoder not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(skipped)]
    optimizers = [torch.optim.Adam(trained, lr=5e-3)]
    if bug == "embedding in two optimizers":
        optimizers.append(torch.optim.Adam(model.embed.parameters(), lr=5e-3))
    return Case(model, letters, following, loss, optimizers)


# Tags of words in packed sentences.


class PackedTagger(nn.Module):
    def __init__(self, bug: str, words: int = 80, tags: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 24, padding_idx=0)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, tags)
        self.bug = bug

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        if self.bug == "sorted and not put back":
            lengths, order = lengths.sort(descending=True)
            words = words[order]
        emb = self.embed(words)
        if self.bug == "not packed":
            h, _ = self.gru(emb)
        else:
            packed = pack_padded_sequence(emb, lengths.cpu(), batch_first=True, enforce_sorted=False)
            h, _ = self.gru(packed)
            first = self.bug != "unpacked with time first"
            h, _ = pad_packed_sequence(h, batch_first=first, total_length=words.shape[1])
        if self.bug == "unpacked with time first":
            h = h.reshape(*words.shape, -1)
        scores = self.out(h)
        return F.log_softmax(scores, dim=1 if self.bug == "log_softmax over time" else -1)


@problem(
    "packed-tagger",
    "sequence tagging",
    bug("sorted and not put back", "mixed-samples or mixed-targets"),
    bug("not packed", "unmasked-padding or idle-input", note=True),
    bug("unpacked with time first", "mixed-samples or mixed-targets"),
    bug("log_softmax over time", "unnormalized-scores", "nll_loss"),
    bug("padding has a tag of its own", "single-answer or unmasked-padding", note=True),
    bug("mean per sentence, then over sentences", "uneven-reduction", note=True),
    bug("probabilities chosen without a minus", "negated-loss"),
    bug("vectors frozen, but never loaded", "frozen-random-weights", "embed"),
    bug("tag layer created again later", "forgotten-parameters", "out.weight"),
    part="fifth set",
)
def packed_tagger(bug: str) -> Case:
    model = PackedTagger(bug)
    lengths = torch.randint(4, 13, (20,))
    kept = torch.arange(12) < lengths[:, None]
    words = torch.randint(1, 80, (20, 12)) * kept
    # The tag of a word depends on its class and on that of the word before.
    before = F.pad(words, (1, 0))[:, :-1]
    tags = (1 + words % 3 + (before % 2) * 2) * kept
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if bug == "vectors frozen, but never loaded":
        model.embed = nn.Embedding.from_pretrained(torch.randn(80, 24), freeze=True, padding_idx=0)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    if bug == "tag layer created again later":
        model.out = nn.Linear(48, 6)

    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        if bug == "mean per sentence, then over sentences":
            rows = zip(scores, tags, strict=True)
            return torch.stack([F.nll_loss(s, t, ignore_index=0) for s, t in rows]).mean()
        if bug == "probabilities chosen without a minus":
            return scores.gather(-1, tags.unsqueeze(-1)).squeeze(-1)[tags > 0].mean()
        ignored = -100 if bug == "padding has a tag of its own" else 0
        return F.nll_loss(scores.flatten(0, 1), tags.flatten(), ignore_index=ignored)

    return Case(model, {"words": words, "lengths": lengths}, tags, loss, optimizer)


# The next value of several series at each step, with convolutions that look back only.


class CausalConv(nn.Module):
    def __init__(self, inside: int, outside: int, dilation: int, bug: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inside, outside, 3, dilation=dilation)
        self.pad = 2 * dilation
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.pad, 0
        if self.bug == "padded on both sides":
            left = right = self.pad // 2
        if self.bug == "padded on the right":
            left, right = right, left
        return self.conv(F.pad(x, (left, right)))


class SalesForecaster(nn.Module):
    def __init__(self, bug: str, series: int = 3, wide: int = 24) -> None:
        super().__init__()
        self.inside = nn.Conv1d(series, wide, 1)
        self.layers = nn.ModuleList(CausalConv(wide, wide, 2**i, bug) for i in range(3))
        self.outside = nn.Conv1d(wide, series, 1)
        self.bug = bug

    def forward(self, history: Tensor) -> Tensor:
        n, steps, series = history.shape
        if self.bug == "centered on the mean of the window":
            history = history - history.mean(1, keepdim=True)
        if self.bug == "scaled by the largest of all shops":
            history = history / history.abs().max()
        if self.bug == "axes exchanged by a view":
            x = self.inside(history.reshape(n, series, steps))
        else:
            x = self.inside(history.transpose(1, 2))
        h = x
        for layer in self.layers:
            if self.bug == "each layer reads the input again":
                h = F.relu(layer(x))
            else:
                h = h + F.relu(layer(h))
        out = self.outside(h).transpose(1, 2)
        return torch.sigmoid(out) if self.bug == "sigmoid on the forecast" else out


@problem(
    "sales-forecaster",
    "forecasting",
    bug("padded on both sides", "visible-answer"),
    bug("padded on the right", "visible-answer"),
    bug("centered on the mean of the window", "visible-answer"),
    bug("axes exchanged by a view", "visible-answer"),
    bug("scaled by the largest of all shops", "mixed-samples or visible-answer", "max"),
    bug("each layer reads the input again", "discarded-results", "layers.0"),
    bug("sigmoid on the forecast", "unreachable-targets", "sigmoid"),
    bug("asked for the value it reads", "shifted-targets"),
    bug("sales in cents", "targets-out-of-scale"),
    bug("rate of 1e-8", "crawling-step or motionless-step"),
    part="fifth set",
)
def sales_forecaster(bug: str) -> Case:
    model = SalesForecaster(bug)
    time = torch.arange(33.0)[None, :, None]
    phase, period = torch.rand(16, 1, 3) * 6, 6 + 4 * torch.rand(16, 1, 3)
    sales = torch.sin(2 * math.pi * time / period + phase) + 0.1 * torch.randn(16, 33, 3)
    history, following = sales[:, :-1], sales[:, 1:]
    if bug == "asked for the value it reads":
        following = history.clone()
    if bug == "sales in cents":
        following = 10_000 * following
    rate = 1e-8 if bug == "rate of 1e-8" else 3e-3
    return Case(model, history, following, nn.L1Loss(), torch.optim.Adam(model.parameters(), lr=rate))


# A caption for each picture, with a Transformer decoder that attends to patches.


class PatchCaptioner(nn.Module):
    def __init__(self, bug: str, words: int = 30, wide: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, wide, 4, stride=4)
        self.grid = nn.Parameter(torch.randn(1, 16, wide) * 0.1)
        self.words = nn.Embedding(words, wide)
        self.places = nn.Embedding(8, wide)
        layer = nn.TransformerDecoderLayer(wide, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(wide, words)
        self.bug = bug

    def forward(self, picture: Tensor, caption: Tensor) -> Tensor:
        seen = self.patches(picture)
        if self.bug == "patches gathered before the pictures":
            seen = seen.permute(2, 3, 0, 1).reshape(len(picture), 16, -1)
        else:
            seen = seen.flatten(2).transpose(1, 2)
        seen = seen + self.grid
        if self.bug == "pictures detached":
            seen = seen.detach()
        if self.bug == "memory of zeros":
            seen = torch.zeros_like(seen)
        steps = caption.shape[1]
        h = self.words(caption) + self.places(torch.arange(steps))
        mask = nn.Transformer.generate_square_subsequent_mask(steps)
        if self.bug == "causal mask of zeros":
            mask = torch.zeros(steps, steps)
        h = self.decoder(h, seen, tgt_mask=mask)
        return self.head(h)


@problem(
    "patch-captioner",
    "image captioning",
    bug("patches gathered before the pictures", "mixed-samples"),
    bug("pictures detached", "blocked-path", "patches"),
    bug("memory of zeros", "idle-input or discarded-results or blocked-path"),
    bug("causal mask of zeros", "visible-answer"),
    bug("caption not shifted", "shifted-targets or visible-answer"),
    bug("scores viewed as (batch, words, time)", "mixed-targets or shifted-targets"),
    bug("words not in the optimizer", "forgotten-parameters", "words.weight"),
    part="fifth set",
)
def patch_captioner(bug: str) -> Case:
    model = PatchCaptioner(bug)
    kind, color = torch.randint(0, 8, (16,)), torch.randint(0, 3, (16,))
    picture = 0.3 * torch.randn(16, 3, 16, 16)
    for index in range(16):
        row, column = divmod(int(kind[index]), 4)
        picture[index, color[index], 8 * row : 8 * row + 6, 4 * column : 4 * column + 4] += 2
    start = torch.zeros(16, dtype=torch.long)
    text = torch.stack([start, 1 + color, 4 + kind, 12 + kind, 20 + color, 23 + kind // 2, start + 27], 1)
    caption, following = text[:, :-1], text[:, 1:]
    if bug == "caption not shifted":
        caption = following.clone()

    def loss(scores: Tensor, following: Tensor) -> Tensor:
        if bug == "scores viewed as (batch, words, time)":
            return F.cross_entropy(scores.reshape(16, 30, 6), following)
        return F.cross_entropy(scores.transpose(1, 2), following)

    skipped = "words" if bug == "words not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(skipped)]
    inputs = {"picture": picture, "caption": caption}
    return Case(model, inputs, following, loss, torch.optim.AdamW(trained, lr=1e-3))
