"""Tags of the words of padded forms, by a small Transformer with its own attention."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader

PAD, CLASSES, LONGEST = 0, 4, 20


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


args = get_args()


def make_forms(count, seed):
    """The first word is the kind of the form; a tag depends on that, on the word, and on the part of the form."""
    gen = torch.Generator().manual_seed(seed)
    forms = []
    for _ in range(count):
        length = int(torch.randint(6, LONGEST + 1, (1,), generator=gen))
        words = torch.randint(3, 15, (length,), generator=gen)
        kind = int(torch.randint(0, 2, (1,), generator=gen))
        words[0] = 1 + kind
        part = torch.arange(length) // 7
        forms.append((words, (words % 2) * 2 + (part + kind) % 2))
    return forms


def collate(forms):
    fill = 0 if args.bug in ("pad_counts", "class_zero_ignored") else -1
    words = torch.full((len(forms), LONGEST), PAD)
    tags = torch.full((len(forms), LONGEST), fill)
    for row, (w, t) in enumerate(forms):
        words[row, : len(w)], tags[row, : len(t)] = w, t
    return words, tags


class Positions(nn.Module):
    def __init__(self, width):
        super().__init__()
        angle = torch.arange(64)[:, None] * torch.exp(-math.log(200.0) * torch.arange(0, width, 2) / width)
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[None])

    def forward(self, x, real):
        if args.bug == "one_position":
            return x + self.pe[:, x.shape[1], :]
        pe = self.pe[:, : x.shape[1]].expand(len(x), -1, -1)
        if args.bug == "positions_of_padding":
            return x + pe * ~real.unsqueeze(-1)
        return x + pe * real.unsqueeze(-1)


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def attend(self, x, real):
        if args.bug == "attention_over_batch":
            x, real = x.transpose(0, 1), torch.ones_like(real).T
        b, t, w = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / math.sqrt(w / self.heads)
        mask = real[:, None, :, None] if args.bug == "mask_of_queries" else real[:, None, None, :]
        scores = scores.masked_fill(~mask, -10000.0)
        out = self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w))
        return out.transpose(0, 1) if args.bug == "attention_over_batch" else out

    def forward(self, x, real):
        x = x + self.attend(self.norm1(x), real)
        return x + self.ff(self.norm2(x))


class Tagger(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed, self.positions = nn.Embedding(16, width), Positions(width)
        self.layers = nn.ModuleList([Layer(width), Layer(width)])
        self.out = nn.Linear(width, CLASSES)

    def forward(self, words):
        real = words != PAD
        x = self.positions(self.embed(words), real)
        for layer in self.layers:
            x = layer(x, real)
        return self.out(x)


torch.manual_seed(args.seed)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
ignored = {"pad_counts": -100, "class_zero_ignored": 0}.get(args.bug, -1)
criterion = nn.CrossEntropyLoss(ignore_index=ignored)
loader = DataLoader(make_forms(1600, 1), batch_size=24, shuffle=True, collate_fn=collate)
for epoch in range(3):
    for words, tags in loader:
        loss = criterion(model(words).transpose(1, 2), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
model.eval()
words, tags = collate(make_forms(400, 2))
with torch.no_grad():
    guess = torch.cat([model(part).argmax(-1) for part in words.split(24)])
real = words != PAD
print(f"metric {(guess == tags)[real].float().mean().item():.4f}")
