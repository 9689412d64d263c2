"""Text, time series and audio: attention, recurrence, convolution, state spaces."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.families.blocks import (
    Attention,
    Lambda,
    Positions,
    Residual,
    act,
    norm,
    transformer_block,
    wide,
)
from benchmarks.atlas.problem import Batch, Draw, Knobs, Recipe, Setup, class_loss, family

WORDS, LENGTH = 24, 16


def markov(size: int = 16, length: int = LENGTH) -> Draw:
    """Text whose next word depends on the last two words, for language models."""
    source = torch.Generator().manual_seed(5)
    table = (3.0 * torch.randn(WORDS, WORDS, generator=source)).softmax(-1)
    shift = torch.randint(0, WORDS, (WORDS,), generator=source)

    def draw(generator: torch.Generator) -> Batch:
        words = torch.randint(0, WORDS, (size, 2), generator=generator)
        for _ in range(length - 1):
            state = (words[:, -1] + shift[words[:, -2]] * (words[:, -2] % 2)) % WORDS
            new = torch.multinomial(table[state], 1, generator=generator)
            words = torch.cat([words, new], 1)
        return Batch((words[:, :length],), words[:, 1 : length + 1])

    return draw


def counting(size: int = 32) -> Draw:
    """Which of words 0 to 3 occurs most often, for classifiers of sequences."""

    def draw(generator: torch.Generator) -> Batch:
        label = torch.randint(0, 4, (size,), generator=generator)
        words = torch.randint(0, WORDS, (size, LENGTH), generator=generator)
        is_planted = torch.rand(size, LENGTH, generator=generator) < 0.35
        return Batch((torch.where(is_planted, label[:, None], words),), label)

    return draw


@family("text", "depth", "skips", "norms", "activation", "width")
def gpt(knobs: Knobs) -> Setup:
    """A causal language model with learned positions."""
    width = wide(knobs, 32)
    blocks = [
        part for _ in range(2 * knobs.depth) for part in transformer_block(knobs, width, 2, causal=True)
    ]
    head = [norm(knobs, nn.LayerNorm(width)), nn.Linear(width, WORDS)]
    embed = nn.Embedding(WORDS, width)
    nn.init.normal_(embed.weight, std=0.02)
    model = nn.Sequential(embed, Positions(LENGTH, width), *blocks, *head)
    return Setup(model, markov(), class_loss, "classes", Recipe("adamw", 3e-3), 300)


@family("text", "depth", "activation", "width")
def post_norm_encoder(knobs: Knobs) -> Setup:
    """torch's own encoder layers, post-norm, as a classifier."""
    width = wide(knobs, 24)
    activation: Any = (knobs.activation or nn.ReLU)()
    layers = [
        nn.TransformerEncoderLayer(width, 2, 48, dropout=0.0, activation=activation, batch_first=True)
        for _ in range(2 * knobs.depth)
    ]
    model = nn.Sequential(
        nn.Embedding(WORDS, width),
        Positions(LENGTH, width),
        *layers,
        Lambda(lambda x: x.mean(1)),
        nn.Linear(width, 4),
    )
    return Setup(model, counting(), F.cross_entropy, "classes", Recipe("adam", 2e-3), 200)


@family("text", "depth", "skips", "norms", "activation", "width")
def masked_language_model(knobs: Knobs) -> Setup:
    """A bidirectional encoder that fills in masked words."""
    width = wide(knobs, 32)

    def draw(generator: torch.Generator) -> Batch:
        start, pace = torch.randint(0, WORDS, (2, 16, 1), generator=generator)
        words = (start + (1 + pace % 3) * torch.arange(LENGTH)) % WORDS
        is_masked = torch.rand(words.shape, generator=generator) < 0.2
        return Batch((words.masked_fill(is_masked, WORDS),), words.masked_fill(~is_masked, -100))

    blocks = [
        part for _ in range(2 * knobs.depth) for part in transformer_block(knobs, width, 2, causal=False)
    ]
    model = nn.Sequential(
        nn.Embedding(WORDS + 1, width),
        Positions(LENGTH, width),
        *blocks,
        norm(knobs, nn.LayerNorm(width)),
        nn.Linear(width, WORDS),
    )
    return Setup(model, draw, class_loss, "classes", Recipe("adamw", 3e-3), 500)


class Recurrent(nn.Module):
    """An embedding, a recurrent layer and a head on every state or on the last one."""

    def __init__(self, kind: type[nn.RNNBase], width: int, classes: int, *, last: bool, layers: int) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(WORDS, width), last
        self.rnn = kind(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(words))
        return self.head(states[:, -1] if self.last else states)


@family("text", "depth", "width")
def lstm_classifier(knobs: Knobs) -> Setup:
    model = Recurrent(nn.LSTM, wide(knobs, 32), 4, last=True, layers=knobs.depth)
    return Setup(model, counting(), F.cross_entropy, "classes", Recipe("adam", 5e-3), 300)


@family("text", "depth", "width")
def gru_language_model(knobs: Knobs) -> Setup:
    model = Recurrent(nn.GRU, wide(knobs, 40), WORDS, last=False, layers=knobs.depth)
    return Setup(model, markov(), class_loss, "classes", Recipe("adam", 5e-3), 300)


@family("text", "activation", "width")
def bag_of_words(knobs: Knobs) -> Setup:
    """Averaged embeddings and a small network."""
    width = wide(knobs, 24)
    model = nn.Sequential(
        nn.EmbeddingBag(WORDS, width), nn.Linear(width, width), act(knobs), nn.Linear(width, 4)
    )
    return Setup(model, counting(), F.cross_entropy, "classes", Recipe("adam", 5e-3), 250)


class CausalConv(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv, self.pad = nn.Conv1d(width, width, 2, dilation=dilation), dilation

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.pad, 0)))


@family("text", "depth", "skips", "activation", "width")
def temporal_convnet(knobs: Knobs) -> Setup:
    """Dilated causal convolutions with skips, as a language model."""
    width = wide(knobs, 32)
    blocks = [
        Residual(
            nn.Sequential(CausalConv(width, 2 ** (i % 3)), act(knobs), nn.Conv1d(width, width, 1)), knobs
        )
        for i in range(3 * knobs.depth)
    ]
    model = nn.Sequential(
        nn.Embedding(WORDS, width),
        Lambda(lambda x: x.transpose(1, 2)),
        *blocks,
        Lambda(lambda x: x.transpose(1, 2)),
        nn.Linear(width, WORDS),
    )
    return Setup(model, markov(), class_loss, "classes", Recipe("adam", 3e-3), 300)


class LinearAttention(nn.Module):
    """Causal attention without softmax: running sums of key-value products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        total = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return self.out(torch.einsum("btd,btde->bte", q, memory) / total)


@family("text", "depth", "skips", "norms", "width")
def linear_attention(knobs: Knobs) -> Setup:
    width = wide(knobs, 24)
    blocks: list[nn.Module] = []
    for _ in range(2 * knobs.depth):
        mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        blocks += [
            Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), inner), knobs)
            for inner in (LinearAttention(width), mlp)
        ]
    model = nn.Sequential(
        nn.Embedding(WORDS, width), *blocks, norm(knobs, nn.LayerNorm(width)), nn.Linear(width, WORDS)
    )
    return Setup(model, markov(), class_loss, "classes", Recipe("adamw", 3e-3), 300)


class StateSpace(nn.Module):
    """A gated diagonal recurrence h_t = a h_{t-1} + x_t."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.linspace(-2, 3, width))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.into(x).chunk(2, -1)
        keep, state, states = self.decay.sigmoid(), torch.zeros_like(value[:, 0]), []
        for t in range(value.shape[1]):
            state = keep * state + (1 - keep) * value[:, t]
            states.append(state)
        return self.out(torch.stack(states, 1) * F.silu(gate))


@family("time series", "depth", "skips", "norms", "width")
def state_space(knobs: Knobs) -> Setup:
    """Predicts the next value of a sum of two oscillations."""
    width = wide(knobs, 24)

    def draw(generator: torch.Generator) -> Batch:
        time, phase = torch.arange(17.0), 6.3 * torch.rand(32, 2, 1, generator=generator)
        wave = torch.sin(0.7 * time + phase[:, 0]) + 0.5 * torch.sin(1.9 * time + phase[:, 1])
        return Batch((wave[:, :-1, None],), wave[:, 1:, None])

    blocks = [
        Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), StateSpace(width)), knobs)
        for _ in range(2 * knobs.depth)
    ]
    model = nn.Sequential(nn.Linear(1, width), *blocks, nn.Linear(width, 1))
    return Setup(model, draw, F.mse_loss, "numbers", Recipe("adamw", 3e-3), 250)


class Translator(nn.Module):
    """torch's nn.Transformer with its own embeddings."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 24)
        self.embed, self.place = nn.Embedding(WORDS, width), Positions(9, width)
        self.body = nn.Transformer(
            width, 2, knobs.depth, knobs.depth, 48, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        memory = self.place(self.embed(source))
        return self.head(self.body(memory, self.place(self.embed(target)), tgt_mask=mask, tgt_is_causal=True))


@family("encoder-decoder", "depth", "width")
def translator(knobs: Knobs) -> Setup:
    """Repeats its source word by word, each shifted by three."""

    def draw(generator: torch.Generator) -> Batch:
        source = torch.randint(1, WORDS, (32, 8), generator=generator)
        target = (source + 3) % WORDS
        return Batch((source, F.pad(target[:, :-1], (1, 0))), target)

    return Setup(Translator(knobs), draw, class_loss, "classes", Recipe("adam", 2e-3), 500)


@family("audio", "norms", "activation", "width")
def audio_convnet(knobs: Knobs) -> Setup:
    """The pitch class of a noisy tone from its raw wave."""
    width = wide(knobs, 12)

    def draw(generator: torch.Generator) -> Batch:
        kind = torch.randint(0, 5, (32,), generator=generator)
        time = torch.arange(128.0)
        phase = 2 * math.pi * torch.rand(32, 1, generator=generator)
        wave = torch.sin(0.15 * (1 + kind[:, None]) * time + phase)
        return Batch(((wave + 0.5 * torch.randn(32, 128, generator=generator)).unsqueeze(1),), kind)

    def stage(inputs: int) -> list[nn.Module]:
        return [
            nn.Conv1d(inputs, width, 9, stride=2, padding=4),
            norm(knobs, nn.BatchNorm1d(width)),
            act(knobs),
        ]

    model = nn.Sequential(
        *stage(1),
        *stage(width),
        *stage(width),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, 5),
    )
    return Setup(model, draw, F.cross_entropy, "classes", Recipe("adam", 3e-3), 250)


class Adapted(nn.Module):
    """A frozen linear layer with a trained low-rank addition."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)


@family("fine-tuning", "width")
def low_rank_adaptation(knobs: Knobs) -> Setup:
    """A trained language model that learns other text through low-rank additions to its frozen matrices."""
    width, other = wide(knobs, 32), markov()
    model = nn.Sequential(
        nn.Embedding(WORDS, width),
        Positions(LENGTH, width),
        *transformer_block(knobs, width, 2, causal=True),
        nn.LayerNorm(width),
        nn.Linear(width, WORDS),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    source = torch.Generator().manual_seed(11)
    for _ in range(120):  # pretraining: the same text with its words in another order
        batch = other(source)
        loss = class_loss(model(WORDS - 1 - batch.inputs[0]), WORDS - 1 - batch.targets)  # type: ignore[operator]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.requires_grad_(requires_grad=False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapted(child))
    recipe = Recipe("adamw", 1e-2, choose=lambda net: [p for p in net.parameters() if p.requires_grad])
    return Setup(model, other, class_loss, "classes", recipe, 300)


@family("text", "width")
def hugging_face_bert(knobs: Knobs) -> Setup:
    """A tiny BERT classifier of transformers, which computes its loss itself."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=wide(knobs, 32),
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=4,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _own_loss_family(BertForSequenceClassification(config), counting(), Recipe("adamw", 2e-3))


@family("text", "width")
def hugging_face_llama(knobs: Knobs) -> Setup:
    """A tiny Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=wide(knobs, 32),
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    return _own_loss_family(LlamaForCausalLM(config), markov(), Recipe("adamw", 4e-3))


class LogitsOnly(nn.Module):
    """A model of transformers that returns only its logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, words: Tensor) -> Tensor:
        return self.inner(input_ids=words).logits


def _own_loss_family(model: nn.Module, draw: Draw, recipe: Recipe) -> Setup:
    return Setup(LogitsOnly(model), draw, class_loss, "classes", recipe, 300)


@family("text", "depth", "skips", "norms", "width")
def attention_regression(knobs: Knobs) -> Setup:
    """In-context regression: the answer to the last question from the examples before it."""
    width = wide(knobs, 24)

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(48, 8, 2, generator=generator)
        weights = torch.randn(48, 2, 1, generator=generator)
        y = x @ weights
        shown = y.clone()
        shown[:, -1] = 0
        return Batch((torch.cat([x, shown], -1),), y[:, -1])

    def block() -> list[nn.Module]:
        mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        return [
            Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), Attention(width, 2)), knobs),
            Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), mlp), knobs),
        ]

    model = nn.Sequential(
        nn.Linear(3, width),
        *[part for _ in range(2 * knobs.depth) for part in block()],
        Lambda(lambda x: x[:, -1]),
        nn.Linear(width, 1),
    )
    return Setup(model, draw, F.mse_loss, "numbers", Recipe("adam", 3e-3), 800)
