"""A tiny GPT on sentences of a small grammar, with accumulation."""

import argparse
import math
import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    block: int = 32
    width: int = 48
    heads: int = 2
    layers: int = 2
    batch: int = 12
    accumulate: int = 2
    steps: int = 110
    bug: str = ""
    seed: int = 0


def make_text(sentences=3000):
    rng = random.Random(4)
    who = ["the cat", "a dog", "my aunt", "the old man", "her bird"]
    does = ["sees", "likes", "follows", "calls"]
    rows = [f"{rng.choice(who)} {rng.choice(does)} {rng.choice(who)}." for _ in range(sentences)]
    return " ".join(rows)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.proj = nn.Linear(cfg.width, cfg.width)
        self.register_buffer("mask", torch.tril(torch.ones(cfg.block, cfg.block)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.cfg.heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, dim=2))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
        att = F.softmax(att, dim=-2 if self.cfg.bug == "softmax_over_queries" else -1)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.attn = Attention(cfg)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(), nn.Linear(4 * cfg.width, cfg.width)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.cfg = cfg
        self.tok, self.pos = nn.Embedding(vocab, cfg.width), nn.Embedding(64, cfg.width)
        if cfg.bug == "shared_blocks":
            self.blocks = nn.ModuleList([Block(cfg)] * cfg.layers)
        else:
            self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.norm, self.head = nn.LayerNorm(cfg.width), nn.Linear(cfg.width, vocab)

    def forward(self, idx):
        if self.cfg.bug == "positions_of_batch":
            pos = torch.arange(idx.size(0)).unsqueeze(1)
        else:
            pos = torch.arange(idx.size(1)).unsqueeze(0)
        x = self.tok(idx) + self.pos(pos)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(cfg):
    torch.manual_seed(cfg.seed)
    text = make_text()
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text])
    train_data, test_data = data[:-4000], data[-4000:]
    model = GPT(cfg, len(chars))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(cfg.steps):
        if cfg.bug != "no_zero_grad":
            opt.zero_grad(set_to_none=True)
        for _ in range(cfg.accumulate):
            if cfg.bug == "zero_grad_per_microbatch":
                opt.zero_grad(set_to_none=True)
            at = torch.randint(len(train_data) - cfg.block - 1, (cfg.batch,))
            x = torch.stack([train_data[i : i + cfg.block] for i in at])
            y = torch.stack([train_data[i + 1 : i + cfg.block + 1] for i in at])
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            if cfg.bug != "loss_not_divided":
                loss = loss / cfg.accumulate
            loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    hits = []
    with torch.no_grad():
        for length in (8, 16, 24, 31):  # only the past is given, as when text is written
            at = torch.arange(0, len(test_data) - cfg.block - 1, 40)
            x = torch.stack([test_data[i : i + length] for i in at])
            y = torch.stack([test_data[i + length] for i in at])
            guesses = torch.cat([model(part)[:, -1].argmax(-1) for part in x.split(cfg.batch)])
            hits.append((guesses == y).float().mean().item())
    print(f"metric {sum(hits) / len(hits):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    train(Config(**vars(parser.parse_args())))
