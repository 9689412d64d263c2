"""Which word of a sentence is marked? A GRU with attention over its states, and parameter groups."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
WORDS, LENGTH = 10, 12


class Reader(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.mark = nn.Embedding(2, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.attn = nn.Linear(2 * width, 1)
        self.fc = nn.Linear(width, WORDS)

    def forward(self, words, marks):
        x = self.embed(words) + self.mark(marks)
        outputs, _ = self.gru(x)
        scores = self.attn(torch.cat([x, outputs], 2))
        if args.bug == "softmax_of_one":
            weights = F.softmax(scores, dim=-1)
        elif args.bug == "softmax_over_batch":
            weights = F.softmax(scores, dim=0)
        else:
            weights = F.softmax(scores, dim=1)
        return self.fc((weights * outputs).sum(1))


def sentences(n):
    words, marked = torch.randint(0, WORDS, (n, LENGTH)), torch.randint(0, LENGTH, (n,))
    return words, F.one_hot(marked, LENGTH), words[torch.arange(n), marked]


def groups(model):
    parameters = []
    parameters.append({"params": [*model.embed.parameters(), *model.mark.parameters()], "lr": 5e-3})
    parameters.append({"params": [*model.gru.parameters(), *model.attn.parameters()], "lr": 5e-3})
    head = {"params": model.fc.parameters(), "lr": 1e-2}
    if args.bug != "head_not_appended":
        parameters.append(head)
    return parameters


torch.manual_seed(args.seed)
model = Reader()
optimizer = torch.optim.Adam(groups(model))
for step in range(200):
    words, marks, answer = sentences(48)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(words, marks), answer)
    if args.bug == "clip_before_backward":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        loss.backward()
    else:
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: {loss.item():.3f}")
with torch.no_grad():
    words, marks, answer = sentences(500)
    print(f"metric {(model(words, marks).argmax(1) == answer).float().mean().item():.4f}")
