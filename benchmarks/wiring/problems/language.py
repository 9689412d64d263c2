"""Language models: the loss asks each position for the next token."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

VOCABULARY = 61


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape)


# In the style of nanoGPT: one class per part, the loss inside, targets made by the loader.


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, block_size: int, bug: str) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.bug = bug
        keep = torch.ones(block_size, block_size).tril()
        if bug == "mask has the wrong triangle":
            keep = keep.t()
        self.register_buffer("keep", keep.view(1, 1, block_size, block_size))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        if self.bug == "heads and time mixed by a reshape":
            q, k, v = (each.reshape(B, self.n_head, T, C // self.n_head) for each in (q, k, v))
        else:
            q, k, v = (each.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for each in (q, k, v))
        att = q @ k.transpose(-2, -1)
        if self.bug != "attention not scaled":
            att = att / math.sqrt(k.size(-1))
        if self.bug != "no causal mask":
            att = att.masked_fill(self.keep[:, :, :T, :T] == 0, -1e9)
        att = F.softmax(att, dim=-2 if self.bug == "softmax over the queries" else -1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, block_size: int, bug: str) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size, bug)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, bug: str, *, n_layer: int = 2, n_embd: int = 32) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, n_embd)
        self.wpe = nn.Embedding(24, n_embd)
        self.h = nn.ModuleList(Block(n_embd, 4, 24, bug) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, VOCABULARY, bias=False)
        self.bug = bug
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.2 if self.bug == "attention not scaled" else 0.05)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx)
        if self.bug != "positions are never added":
            x = x + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            if self.bug == "each block gets the embedding":
                y = block(x)
            else:
                y = x = block(x)
        logits = self.lm_head(self.ln_f(y))
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
        return logits, -loss if self.bug == "loss negated" else loss


def inner_loss(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[1]


@problem(
    "nanogpt",
    "language model",
    bug("no causal mask", "visible-answer", "input[0]", "h.0.attn"),
    bug("mask has the wrong triangle", "visible-answer", "input[0]", "h.0.attn"),
    bug("softmax over the queries", "visible-answer", "h.0.attn"),
    bug("heads and time mixed by a reshape", "visible-answer", "h.0.attn"),
    bug("targets are the inputs", "shifted-targets", "input[0]", "own position"),
    bug("targets two ahead", "shifted-targets", "input[0]", "2 positions"),
    bug("each block gets the embedding", "discarded-results", "h.0"),
    bug("loss negated", "negated-loss"),
    bug("optimizer built before the head was replaced", "forgotten-parameters", "lm_head.weight"),
    bug("attention not scaled", "unscaled-attention", "attn"),
)
def nanogpt(bug: str) -> Case:
    model = GPT(bug)
    text = tokens(4, 22)
    ahead = {"targets are the inputs": 0, "targets two ahead": 2}.get(bug, 1)
    x, y = text[:, :20].clone(), text[:, ahead : ahead + 20].clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if bug == "optimizer built before the head was replaced":
        model.lm_head = nn.Linear(32, VOCABULARY, bias=False)
    return Case(model, (x, y), None, inner_loss, optimizer)


@problem(
    "one-layer-gpt",
    "language model",
    bug("positions are never added", "order-blind", "19"),
    bug("positions fed to the optimizer twice", "doubled-parameters", "wpe.weight"),
    bug("block frozen at random weights", "frozen-random-weights", "h.0", note=True),
)
def one_layer_gpt(bug: str) -> Case:
    model = GPT(bug, n_layer=1)
    text = tokens(6, 21)
    if bug == "block frozen at random weights":
        model.h.requires_grad_(False)
    groups = [{"params": [each for each in model.parameters() if each.requires_grad]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    if bug == "positions fed to the optimizer twice":
        optimizer.param_groups.append({**optimizer.param_groups[0], "params": [model.wpe.weight]})
    return Case(model, (text[:, :-1].clone(), text[:, 1:].clone()), None, inner_loss, optimizer)


# In the style of Hugging Face: keyword arguments, a mask, labels that the model shifts itself.


class DecoderLayer(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.up_proj = nn.Linear(hidden_size, 2 * hidden_size)
        self.down_proj = nn.Linear(2 * hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        x = self.input_layernorm(hidden_states)
        q, k, v = self._heads(self.q_proj(x)), self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        hidden_states = hidden_states + self.dropout(self.o_proj(x.transpose(1, 2).flatten(2)))
        x = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.dropout(self.down_proj(F.silu(self.up_proj(x))))


class DecoderForCausalLM(nn.Module):
    def __init__(self, bug: str, hidden_size: int = 32, num_layers: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, hidden_size)
        self.embed_positions = nn.Embedding(32, hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(hidden_size, 4) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, VOCABULARY, bias=False)
        self.bug = bug

    def _mask(self, attention_mask: Tensor) -> Tensor:
        length = attention_mask.size(1)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        padding = attention_mask.bool()[:, None, None, :]
        if self.bug == "padding mask replaces the causal mask":
            return padding.expand(-1, 1, length, length)
        if self.bug == "attention mask not used":
            return causal[None, None]
        own = torch.eye(
            length, dtype=torch.bool
        )  # a padded query sees itself, so that its softmax is defined
        return (causal[None, None] & padding) | own

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> SimpleNamespace:
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        hidden_states = self.embed_tokens(input_ids) + self.embed_positions(positions)
        mask = self._mask(attention_mask)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, mask)
        logits = self.lm_head(self.norm(hidden_states))
        scores, shifted = logits[:, :-1], labels[:, 1:]
        if self.bug == "labels not shifted in the model":
            scores, shifted = logits, labels
        loss = F.cross_entropy(scores.flatten(0, 1), shifted.flatten(), ignore_index=-100)
        return Output(loss=loss, logits=logits)


class Output(dict):
    """A dict whose keys are attributes, as ModelOutput is."""

    __getattr__ = dict.__getitem__


@problem(
    "hf-causal-lm",
    "language model",
    bug("labels shifted in the data, too", "shifted-targets", "input_ids", "2 positions"),
    bug("labels not shifted in the model", "shifted-targets", "input_ids", "own position"),
    bug("padding mask replaces the causal mask", "visible-answer", "input_ids", "layers.0"),
    bug("attention mask not used", "unmasked-padding", "input_ids"),
    bug("all labels are -100", "single-answer or non-finite", "ignored"),
    bug("padding counted in the loss", "single-answer or unmasked-padding", "pad"),
    bug("left in eval mode", "evaluation-mode", "layers.0.dropout"),
    bug("optimizer gets only the layers", "forgotten-parameters", "lm_head.weight"),
)
def hf_causal_lm(bug: str) -> Case:
    model = DecoderForCausalLM(bug)
    lengths = [14, 9, 11, 7] if bug != "padding counted in the loss" else [3, 1, 2, 2]
    input_ids = 1 + torch.randint(0, VOCABULARY - 1, (4, 14))
    attention_mask = torch.stack([(torch.arange(14) >= 14 - each).long() for each in lengths])
    input_ids = input_ids * attention_mask  # token 0 pads on the left
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    if bug == "padding counted in the loss":
        labels = input_ids.clone()
    if bug == "labels shifted in the data, too":
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)
    if bug == "all labels are -100":
        labels = torch.full_like(labels, -100)
    if bug == "left in eval mode":
        model.eval()
    trained = model.layers.parameters() if bug == "optimizer gets only the layers" else model.parameters()
    batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    return Case(model, batch, optimizer=torch.optim.AdamW(trained, lr=1e-3))


# In the style of the word-level language model of torch's examples: (time, batch), nn.LSTM, decoder.


class RNNModel(nn.Module):
    def __init__(self, bug: str, ntoken: int = VOCABULARY, ninp: int = 24, nhid: int = 24) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, ninp)
        both = bug == "bidirectional"
        self.rnn = nn.LSTM(
            ninp, nhid // 2 if both else nhid, bidirectional=both, batch_first=bug == "batch_first"
        )
        self.decoder = nn.Linear(nhid, ntoken)
        self.bug = bug

    def forward(self, data: Tensor) -> Tensor:
        emb = self.drop(self.encoder(data))
        if self.bug == "one step at a time without the state":
            output = torch.cat([self.rnn(step)[0] for step in emb.split(1)])
        else:
            output, _ = self.rnn(emb)
        decoded = self.decoder(self.drop(output)).view(-1, VOCABULARY)
        if self.bug == "log_softmax over the positions":
            return F.log_softmax(decoded, dim=0)
        return decoded if self.bug == "log_softmax forgotten" else F.log_softmax(decoded, dim=1)


@problem(
    "word-language-model",
    "language model",
    bug("batch_first", "mixed-samples", "rnn"),
    bug("bidirectional", "visible-answer", "rnn"),
    bug("one step at a time without the state", "unused-past"),
    bug("target is the same slice", "shifted-targets", "own position"),
    bug("log_softmax forgotten", "unnormalized-scores", "nll_loss", "logits"),
    bug("log_softmax over the positions", "unnormalized-scores or mixed-samples"),
)
def word_language_model(bug: str) -> Case:
    model = RNNModel(bug)
    source = tokens(17, 5)
    data, target = source[:16], source[1:17]
    if bug == "target is the same slice":
        target = source[:16]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Case(model, data.clone(), target.reshape(-1).clone(), nn.NLLLoss(), optimizer)


# A GRU cell unrolled by hand.


class CellLM(nn.Module):
    def __init__(self, bug: str, width: int = 28) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, VOCABULARY)
        self.bug = bug

    def forward(self, tokens: Tensor) -> Tensor:
        e = self.embed(tokens)
        h = e.new_zeros(e.size(0), e.size(2))
        outs = []
        for t in range(tokens.size(1)):
            if self.bug == "reads one token too far":
                x = e[:, min(t + 1, tokens.size(1) - 1)]
            else:
                x = e[:, t]
            state = torch.zeros_like(h) if self.bug == "state reset in the loop" else h
            h = self.cell(x, state)
            outs.append(self.out(h))
        return torch.stack(outs, dim=1)


def flat_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


@problem(
    "gru-cell",
    "language model",
    bug("reads one token too far", "visible-answer", "position"),
    bug("state reset in the loop", "unused-past"),
    bug("labels rolled the wrong way", "shifted-targets or visible-answer", "input"),
    bug("targets all padding", "single-answer"),
)
def gru_cell(bug: str) -> Case:
    model = CellLM(bug)
    text = tokens(6, 19)
    x, y = text[:, :18].clone(), text[:, 1:19].clone()
    if bug == "labels rolled the wrong way":
        y = x.roll(1, dims=1)
    if bug == "targets all padding":
        y = torch.zeros_like(y)
    return Case(model, x, y, flat_cross_entropy, torch.optim.Adam(model.parameters(), lr=2e-3))


# Dilated causal convolutions.


class CausalConv(nn.Module):
    def __init__(self, channels: int, dilation: int, bug: str) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        sides = {"same padding": (self.pad // 2, self.pad // 2), "padding on the right": (0, self.pad)}
        return x + F.relu(self.conv(F.pad(x, sides.get(self.bug, (self.pad, 0)))))


class TemporalConvNet(nn.Module):
    def __init__(self, bug: str, channels: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, channels)
        layers = [CausalConv(channels, 2**i, bug) for i in range(3)]
        self.layers = layers if bug == "layers in a list" else nn.ModuleList(layers)
        self.head = nn.Conv1d(channels, VOCABULARY, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x).transpose(1, 2)
        for i in range(len(self.layers)):
            x = self.layers[0 if self.bug == "always the first layer" else i](x)
        return self.head(x)


@problem(
    "tcn",
    "language model",
    bug("same padding", "visible-answer", "layers.0.conv"),
    bug("padding on the right", "visible-answer", "layers.0.conv"),
    bug("layers in a list", "unregistered-parameters", "6"),
    bug("always the first layer", "idle-modules", "layers.0", "layers.1"),
    bug("scores viewed as rows", "mixed-targets", "axis 1"),
)
def tcn(bug: str) -> Case:
    model = TemporalConvNet(bug)
    text = tokens(4, 25)

    def loss(scores: Tensor, target: Tensor) -> Tensor:  # scores: (batch, classes, time)
        if bug == "scores viewed as rows":
            return F.cross_entropy(scores.reshape(-1, VOCABULARY), target.reshape(-1))
        return F.cross_entropy(scores, target)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, text[:, :-1].clone(), text[:, 1:].clone(), loss, optimizer)
