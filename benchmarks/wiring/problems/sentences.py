"""Text by attention: a small GPT, a classifier of reviews, and a model that turns one sequence into another."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

ALICE = (
    "alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, and "
    "what is the use of a book, thought alice, without pictures or conversations? so she was considering in her own "
    "mind, as well as she could, for the hot day made her feel very sleepy and stupid, whether the pleasure of making "
    "a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a white rabbit "
    "with pink eyes ran close by her."
)
LETTERS = sorted(set(ALICE))


def windows_of_text(count: int, length: int) -> Tensor:
    """Random windows of Alice in Wonderland, as numbers of letters."""
    text = torch.tensor([LETTERS.index(letter) for letter in ALICE])
    starts = torch.randint(0, len(text) - length, (count,))
    return torch.stack([text[start : start + length] for start in starts.tolist()])


# Letters one by one, as in nanoGPT: own attention, the loss inside.


class CausalSelfAttention(nn.Module):
    def __init__(self, wide: int, heads: int, length: int, bug: str) -> None:
        super().__init__()
        self.c_attn = nn.Linear(wide, 3 * wide)
        self.c_proj = nn.Linear(wide, wide)
        mask = torch.tril(torch.ones(length, length))
        if bug == "triu instead of tril":
            mask = torch.triu(torch.ones(length, length))
        self.register_buffer("mask", mask.view(1, 1, length, length))
        self.heads = heads
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (each.view(n, t, self.heads, c // self.heads).transpose(1, 2) for each in (q, k, v))
        att = q @ k.transpose(-2, -1)
        if self.bug == "multiplied by the square root":
            att = att * math.sqrt(c // self.heads)
        elif self.bug != "square root forgotten":
            att = att / math.sqrt(c // self.heads)
        hidden = self.mask[:, :, :t, :t] == 0
        if self.bug == "masked after the softmax":
            att = F.softmax(att, dim=-1).masked_fill(hidden, 0.0)
        elif self.bug == "masked with zero":
            att = F.softmax(att.masked_fill(hidden, 0.0), dim=-1)
        elif self.bug == "masked result not assigned":
            att.masked_fill(hidden, float("-inf"))
            att = F.softmax(att, dim=-1)
        else:
            att = F.softmax(att.masked_fill(hidden, float("-inf")), dim=-1)
        y = att @ v
        if self.bug != "heads joined without transpose":
            y = y.transpose(1, 2)
        return self.c_proj(y.contiguous().view(n, t, c))


class GPTBlock(nn.Module):
    def __init__(self, wide: int, heads: int, length: int, bug: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attn = CausalSelfAttention(wide, heads, length, bug)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        if self.bug == "feed-forward result not assigned":
            x + self.mlp(self.ln_2(x))
        else:
            x = x + self.mlp(self.ln_2(x))
        return x


class CharGPT(nn.Module):
    def __init__(self, bug: str, wide: int = 32, length: int = 24) -> None:
        super().__init__()
        self.wte = nn.Embedding(len(LETTERS), wide)
        self.wpe = nn.Embedding(length, wide)
        blocks = [GPTBlock(wide, 4, length, bug) for _ in range(3)]
        if bug == "one block three times":
            blocks = [blocks[0]] * 3
        self.blocks = blocks if bug == "blocks in a python list" else nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(wide)
        self.lm_head = nn.Linear(wide, len(LETTERS), bias=False)
        self.bug = bug

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx)
        places = self.wpe(torch.arange(idx.shape[1]))
        if self.bug != "places looked up and not added":
            x = x + places
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if self.bug == "shifted in the data and in the model":
            scores, answers = logits[:, :-1], targets[:, 1:]
        else:
            scores, answers = logits, targets
        return logits, F.cross_entropy(scores.reshape(-1, len(LETTERS)), answers.reshape(-1))


@problem(
    "char-gpt",
    "language model",
    bug("triu instead of tril", "visible-answer"),
    bug("masked after the softmax", "visible-answer"),
    bug("masked with zero", "visible-answer"),
    bug("masked result not assigned", "visible-answer"),
    bug("heads joined without transpose", "visible-answer"),
    bug("square root forgotten", "unscaled-attention"),
    bug("multiplied by the square root", "unscaled-attention or attention-collapse"),
    bug("feed-forward result not assigned", "discarded-results", "mlp"),
    bug("places looked up and not added", "discarded-results", "wpe"),
    bug("one block three times", "repeated-module", "blocks"),
    bug("blocks in a python list", "unregistered-parameters"),
    bug("shifted in the data and in the model", "shifted-targets"),
    bug("targets are the inputs", "shifted-targets"),
    part="fifth set",
)
def char_gpt(bug: str) -> Case:
    model = CharGPT(bug)
    text = windows_of_text(16, 25)
    idx, targets = text[:, :-1], text[:, 1:]
    if bug == "targets are the inputs":
        targets = idx.clone()
    inputs = {"idx": idx, "targets": targets}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    return Case(model, inputs, None, lambda out: out[1], optimizer)


# Good and bad reviews of different lengths with PyTorch's encoder; one score per review.


class ReviewTransformer(nn.Module):
    def __init__(self, bug: str, words: int = 60, wide: int = 32, length: int = 20) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, wide, padding_idx=0)
        self.position = nn.Parameter(0.1 * torch.randn(1, length, wide))
        first = bug != "batch_first forgotten, no mask"
        layer = nn.TransformerEncoderLayer(wide, 4, 64, dropout=0.1, batch_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(wide, 1)
        self.bug = bug

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.embedding(input_ids)
        if self.bug != "positions never added":
            h = h + self.position[:, : input_ids.shape[1]]
        padding = attention_mask == 0
        if self.bug == "padding mask inverted":
            padding = attention_mask == 1
        if self.bug in ("padding mask not passed", "batch_first forgotten, no mask"):
            h = self.encoder(h)
        else:
            h = self.encoder(h, src_key_padding_mask=padding)
        if self.bug == "encoder output turned into a list":
            h = torch.tensor(h.tolist())
        if self.bug == "mean over all positions":
            pooled = h.mean(1)
        else:
            kept = attention_mask.unsqueeze(-1).float()
            pooled = (h * kept).sum(1) / kept.sum(1)
        score = self.classifier(pooled)
        if self.bug == "softmax over the one score":
            return torch.softmax(score, dim=1).squeeze(1)
        return torch.sigmoid(score).squeeze(1)


@problem(
    "review-transformer",
    "text classification",
    bug("batch_first forgotten, no mask", "mixed-samples", "encoder"),
    bug("padding mask not passed", "unmasked-padding"),
    bug("padding mask inverted", "unmasked-padding or non-finite"),
    bug("mean over all positions", "unmasked-padding"),
    bug("positions never added", "order-blind"),
    bug("encoder output turned into a list", "blocked-path"),
    bug("softmax over the one score", "step-function", "softmax"),
    bug("mask of ones from the tokenizer", "unmasked-padding or idle-input", note=True),
    bug("encoder frozen before it was trained", "frozen-random-weights", "encoder"),
    bug("mode of the last evaluation", "evaluation-mode"),
    part="fifth set",
)
def review_transformer(bug: str) -> Case:
    model = ReviewTransformer(bug)
    tokens = torch.randint(3, 60, (32, 20))
    lengths = torch.randint(8, 19, (32, 1))
    mask = (torch.arange(20) < lengths).long()
    # Word 1 praises unless word 2 ("not") stands right before it, so the order of words matters.
    place = (torch.rand(32) * (lengths.squeeze(1) - 2)).long()
    rows, negated = torch.arange(32), torch.rand(32) < 0.5
    tokens[rows, place + 1] = 1
    tokens[rows[negated], place[negated]] = 2
    tokens[rows[~negated], (place[~negated] + 2).clamp(max=19)] = 2
    tokens = tokens * mask
    if bug == "mask of ones from the tokenizer":
        mask = torch.ones_like(mask)
    if bug == "encoder frozen before it was trained":
        model.embedding.requires_grad_(False)
        model.encoder.requires_grad_(False)
    if bug == "mode of the last evaluation":
        model.eval()
    inputs = {"input_ids": tokens, "attention_mask": mask}
    return Case(
        model, inputs, (~negated).float(), nn.BCELoss(), torch.optim.Adam(model.parameters(), lr=1e-3)
    )


# One sequence from another, backwards, with nn.Transformer and the layout (time, batch).

PAD, START, VOCABULARY = 0, 1, 22


class Reverser(nn.Module):
    def __init__(self, bug: str, wide: int = 32) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(VOCABULARY, wide)
        self.tgt_embed = nn.Embedding(VOCABULARY, wide)
        self.places = nn.Parameter(torch.randn(12, 1, wide) * 0.3)
        layer = nn.TransformerEncoderLayer(wide, 4, 64, dropout=0.0)
        encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(wide), enable_nested_tensor=False)
        self.transformer = nn.Transformer(wide, 4, 2, 2, 64, dropout=0.0, custom_encoder=encoder)
        self.generator = nn.Linear(wide, VOCABULARY)
        self.bug = bug

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src_padding = (src == PAD).t()
        s = self.src_embed(src) + self.places[: len(src)]
        if self.bug == "source embedding for the target":
            t = self.src_embed(tgt) + self.places[: len(tgt)]
        else:
            t = self.tgt_embed(tgt) + self.places[: len(tgt)]
        mask = torch.triu(torch.ones(len(tgt), len(tgt), dtype=torch.bool), diagonal=1)
        if self.bug == "mask true where attention is allowed":
            mask = ~mask
        if self.bug == "mask begins two steps ahead":
            mask = torch.triu(torch.ones_like(mask), diagonal=2)
        h = self.transformer(
            t if self.bug == "target given to the encoder" else s,
            t,
            tgt_mask=None if self.bug == "tgt_mask not given" else mask,
            src_key_padding_mask=None if "target given" in self.bug else src_padding,
            memory_key_padding_mask=None
            if self.bug in ("target given to the encoder", "memory mask not given")
            else src_padding,
        )
        scores = self.generator(h)
        return scores if self.bug == "log_softmax not called" else scores.log_softmax(-1)


@problem(
    "reverser",
    "sequence to sequence",
    bug("tgt_mask not given", "visible-answer"),
    bug("mask true where attention is allowed", "visible-answer"),
    bug("mask begins two steps ahead", "visible-answer"),
    bug("target given to the encoder", "visible-answer or idle-input"),
    bug("memory mask not given", "unmasked-padding"),
    bug("source embedding for the target", "idle-modules", "tgt_embed"),
    bug("log_softmax not called", "unnormalized-scores", "nll_loss"),
    bug("decoder reads the answer itself", "shifted-targets or visible-answer"),
    bug("answers flattened batch first", "mixed-targets or shifted-targets"),
    bug("padding counted as a word", "single-answer or unmasked-padding", note=True),
    bug("mean of the means of each sentence", "uneven-reduction", note=True),
    part="fifth set",
)
def reverser(bug: str) -> Case:
    model = Reverser(bug)
    lengths = torch.randint(4, 11, (24,))
    source = torch.randint(2, VOCABULARY, (10, 24)).masked_fill(torch.arange(10)[:, None] >= lengths, PAD)
    answer = torch.zeros_like(source)
    for column, length in enumerate(lengths.tolist()):
        answer[:length, column] = source[:length, column].flip(0)
    read = torch.cat([torch.full((1, 24), START), answer[:-1]])
    if bug == "decoder reads the answer itself":
        read = answer.clone()
    ignored = -100 if bug == "padding counted as a word" else PAD

    def loss(scores: Tensor, answer: Tensor) -> Tensor:
        if bug == "answers flattened batch first":
            answer = answer.t()
        flat = scores.reshape(-1, VOCABULARY)
        if bug == "mean of the means of each sentence":
            each = F.nll_loss(flat, answer.reshape(-1), ignore_index=PAD, reduction="none").view(answer.shape)
            return (each.sum(0) / (answer != PAD).sum(0)).mean()
        return F.nll_loss(flat, answer.reshape(-1), ignore_index=ignored)

    return Case(model, (source, read), answer, loss, torch.optim.Adam(model.parameters(), lr=1e-3))
