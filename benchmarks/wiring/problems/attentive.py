"""Attention: digits cut into patches, a language model with its own loss, reviews with padding, reversed words."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Digits in patches: a vision transformer with a class token.


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dim_head: int, bug: str) -> None:
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in qkv)
        dots = torch.matmul(q, k.transpose(-1, -2))
        if self.bug != "scores without their scale":
            dots = dots * self.scale
        attn = dots.softmax(dim=0 if self.bug == "attention among the samples" else -1)
        out = torch.matmul(attn, v)
        order = (1, 2, 0, 3) if self.bug == "heads joined with the samples" else (0, 2, 1, 3)
        return self.to_out(out.permute(*order).reshape(b, n, -1))


class ViT(nn.Module):
    def __init__(self, bug: str, dim: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.to_patch = nn.Linear(4, dim)
        token = torch.empty(1, 1, dim)
        self.cls_token = nn.Parameter(token if bug == "class token never drawn" else nn.init.normal_(token))
        self.pos_embedding = nn.Parameter(torch.randn(1, 17, dim) * 0.5)
        layers = []
        for _ in range(depth):
            ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            layers.append([Attention(dim, 2, 64, bug), ff])
        if bug == "layers appended to a list":
            self.layers = layers
        else:
            self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in layers)
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))
        self.bug = bug

    def forward(self, img: Tensor) -> Tensor:
        x = self.to_patch(F.unfold(img, 2, stride=2).transpose(1, 2))
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        if self.bug == "positions added to nothing":
            torch.add(x, self.pos_embedding)
        else:
            x = x + self.pos_embedding
        cls = x[:, 0]
        for attn, ff in self.layers:
            y = attn(x) + x
            if self.bug != "attention overwritten by the feed-forward":
                x = y
            x = ff(x) + x
        if self.bug != "class token read before the layers":
            cls = x[:, 0]
        return self.mlp_head(cls)


@problem(
    "digits-vit",
    "vision transformer",
    bug("class token never drawn", "uninitialized-memory", "cls_token"),
    bug("attention among the samples", "mixed-samples", "softmax"),
    bug("scores without their scale", "unscaled-attention"),
    bug("positions added to nothing", "order-blind or discarded-results"),
    bug("class token read before the layers", "idle-input or discarded-results"),
    bug("attention overwritten by the feed-forward", "discarded-results or idle-input"),
    bug("layers appended to a list", "unregistered-parameters"),
    bug("heads joined with the samples", "mixed-samples or scrambled-axes"),
    part="sixth set",
)
def digits_vit(bug: str) -> Case:
    model = ViT(bug)
    data = load_digits()
    index = torch.randperm(len(data.target))[:32]
    img = torch.from_numpy(data.images).float()[index].unsqueeze(1) / 8 - 1
    label = torch.from_numpy(data.target).long()[index]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return Case(model, img, label, F.cross_entropy, optimizer)


# A pocket GPT: it returns its scores and its own loss.


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, block_size: int, bug: str) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        allowed = torch.tril(torch.ones(block_size, block_size))
        if bug == "mask from triu":
            allowed = torch.triu(torch.ones(block_size, block_size))
        if bug == "diagonal of the mask is one":
            allowed = torch.tril(torch.ones(block_size, block_size), diagonal=1)
        self.register_buffer("bias", allowed)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        if self.bug == "heads split before the time":
            q, k, v = (each.reshape(B, self.n_head, T, C // self.n_head) for each in (q, k, v))
        else:
            q, k, v = (each.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for each in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        masked = att.masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        att = F.softmax(att if self.bug == "masked scores left aside" else masked, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
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


class PocketGPT(nn.Module):
    def __init__(self, bug: str, vocab_size: int = 29, n_embd: int = 48, block_size: int = 24) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, 4, block_size, bug) for _ in range(2)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.bug = bug

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        scores = logits
        if self.bug == "loss of a new variable":
            scores = torch.autograd.Variable(logits.data, requires_grad=True)
        if self.bug == "shifted in the data and in the model":
            scores, targets = scores[:, :-1], targets[:, 1:]
        loss = F.cross_entropy(scores.reshape(-1, scores.size(-1)), targets.reshape(-1))
        return logits, loss


@problem(
    "pocket-gpt",
    "language model",
    bug("mask from triu", "visible-answer or unused-past"),
    bug("masked scores left aside", "visible-answer"),
    bug("diagonal of the mask is one", "visible-answer"),
    bug("heads split before the time", "visible-answer or scrambled-axes"),
    bug("targets copied from the inputs", "shifted-targets", "own position"),
    bug("shifted in the data and in the model", "shifted-targets"),
    bug("loss of a new variable", "blocked-path or discarded-results or motionless-step"),
    bug("embeddings in no group", "forgotten-parameters", "wte.weight"),
    part="sixth set",
)
def pocket_gpt(bug: str) -> Case:
    model = PocketGPT(bug)
    text = torch.randint(0, 29, (12, 25))
    for t in range(2, 25):
        text[:, t] = (text[:, t - 1] + 3 * text[:, t - 2] + 1) % 29
    x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    if bug == "targets copied from the inputs":
        y = x.clone()
    if bug == "embeddings in no group":
        decay = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
        groups = [
            {"params": decay, "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
    else:
        groups = [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    return Case(model, {"idx": x, "targets": y}, None, lambda out: out[1], optimizer)


# Reviews: an encoder with a mask of the padding, and the mean of the real words.


class ReviewEncoder(nn.Module):
    def __init__(self, bug: str, words: int = 50, wide: int = 32, longest: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        self.position = nn.Embedding(longest, wide)
        layer = nn.TransformerEncoderLayer(
            wide, 4, 64, dropout=0.1, batch_first=bug != "batch_first not given"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(wide, 1)
        self.bug = bug

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if self.bug == "mask replaced by ones":
            attention_mask = torch.ones_like(input_ids)
        x = self.embed(input_ids)
        if self.bug != "positions never looked up":
            x = x + self.position(torch.arange(input_ids.shape[1]))
        hidden = attention_mask == 0
        if self.bug == "mask with the opposite meaning":
            hidden = attention_mask.bool()
        x = self.encoder(x, src_key_padding_mask=hidden)
        real = attention_mask.unsqueeze(-1).float()
        if self.bug == "pooled with NumPy":
            pooled = (x * real).detach().numpy().sum(1) / real.numpy().sum(1)
            return self.classifier(torch.from_numpy(pooled)).squeeze(1)
        return self.classifier((x * real).sum(1) / real.sum(1)).squeeze(1)


def evaluate(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return ((model(**inputs) > 0) == (labels > 0.5)).float().mean().item()


@problem(
    "review-bert",
    "text classification",
    bug("batch_first not given", "mixed-samples"),
    bug("mask with the opposite meaning", "unmasked-padding"),
    bug("mask replaced by ones", "unmasked-padding or idle-input", note=True),
    bug("positions never looked up", "order-blind or idle-modules", note=True),
    bug("stars divided and cut to integers", "single-answer", note=True),
    bug("pooled with NumPy", "blocked-path or head-only-gradient"),
    bug("only the classifier is trained", "forgotten-parameters", "embed"),
    bug("evaluated once before the training", "evaluation-mode"),
    part="sixth set",
)
def review_bert(bug: str) -> Case:
    model = ReviewEncoder(bug)
    length = torch.randint(6, 20, (20,))
    attention_mask = (torch.arange(20) < length[:, None]).long()
    input_ids = torch.randint(1, 50, (20, 20))
    first, second = input_ids[:, :6:2].sum(1), input_ids[:, 1:6:2].sum(1)
    stars = torch.where(first > second, 4, 2)
    input_ids = input_ids * attention_mask
    labels = (stars > 3).float()
    if bug == "stars divided and cut to integers":
        labels = (stars / 5).long().float()
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if bug == "evaluated once before the training":
        evaluate(model, inputs, labels)
    trained = model.classifier if bug == "only the classifier is trained" else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    return Case(model, inputs, labels, nn.BCEWithLogitsLoss(), optimizer)


# Words reversed: nn.Transformer with an encoder, a decoder and sinusoidal positions.

PAD, BOS = 0, 1


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, bug: str, maxlen: int = 40) -> None:
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        table = torch.zeros((maxlen, emb_size))
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.register_buffer("table", table.unsqueeze(1 if bug == "positions along the batch" else 0))
        self.bug = bug

    def forward(self, embedding: Tensor) -> Tensor:
        if self.bug == "positions along the batch":
            return embedding + self.table[: embedding.size(0), :]
        return embedding + self.table[:, : embedding.size(1)]


class Seq2SeqTransformer(nn.Module):
    def __init__(self, bug: str, vocab: int = 20, emb_size: int = 32) -> None:
        super().__init__()
        self.transformer = nn.Transformer(emb_size, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(emb_size, vocab)
        self.src_emb, self.tgt_emb = nn.Embedding(vocab, emb_size), nn.Embedding(vocab, emb_size)
        if bug == "from_pretrained with random vectors":
            self.src_emb = nn.Embedding.from_pretrained(torch.randn(vocab, emb_size))
        self.positional_encoding = PositionalEncoding(emb_size, bug)
        self.bug = bug

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src_emb = self.positional_encoding(self.src_emb(src))
        if self.bug == "source embedded for the decoder":
            tgt = src
        tgt_emb = self.positional_encoding(self.tgt_emb(tgt))
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        memory = self.transformer.encoder(src_emb, src_key_padding_mask=src == PAD)
        if self.bug == "empty memory for the decoder":
            memory = torch.zeros_like(memory)
        outs = self.transformer.decoder(
            tgt_emb,
            memory,
            tgt_mask=None if self.bug == "mask of the target not handed on" else tgt_mask,
            memory_key_padding_mask=src == PAD,
        )
        return self.generator(outs)


@problem(
    "reversed-words",
    "sequence to sequence",
    bug("mask of the target not handed on", "visible-answer"),
    bug("positions along the batch", "order-blind"),
    bug("source embedded for the decoder", "idle-input", "tgt", note=True),
    bug("empty memory for the decoder", "idle-input or discarded-results"),
    bug("asked for the word that is given", "shifted-targets", "own position"),
    bug("classes viewed in the middle", "mixed-targets or unnormalized-scores or scrambled-axes"),
    bug("every target became padding", "single-answer or non-finite"),
    bug("from_pretrained with random vectors", "frozen-random-weights", "src_emb", note=True),
    part="sixth set",
)
def reversed_words(bug: str) -> Case:
    model = Seq2SeqTransformer(bug)
    length = torch.randint(5, 11, (16,))
    src = torch.randint(2, 20, (16, 10)).masked_fill(torch.arange(10) >= length[:, None], PAD)
    tgt_out = torch.full_like(src, PAD)
    for row, size in enumerate(length.tolist()):
        tgt_out[row, :size] = src[row, :size].flip(0)
    tgt = torch.cat([torch.full((16, 1), BOS), tgt_out[:, :-1]], dim=1)
    if bug == "asked for the word that is given":
        tgt_out = tgt.clone()
    if bug == "every target became padding":
        tgt_out = torch.where(tgt_out == PAD, tgt_out, PAD)
    loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)

    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        if bug == "classes viewed in the middle":
            return loss_fn(logits.view(logits.size(0), logits.size(2), -1), tgt_out)
        return loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))

    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=2e-3)
    return Case(model, {"src": src, "tgt": tgt}, tgt_out, loss, optimizer)
