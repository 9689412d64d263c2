"""Short reviews with negations, classified by an LSTM that reads time first."""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
BUG, SEED = vars(parser.parse_args()).values()
LENGTH, BATCH = 14, 32
GOOD, BAD, NOT, FILLER = range(1, 6), range(6, 11), 11, range(12, 40)


def review(rng):
    words, mood = [], 0
    while mood == 0:
        words, mood = [], 0
        for _ in range(LENGTH // 2):
            sign = 1
            if rng.random() < 0.15:
                words.append(NOT)
                sign = -1
            kind = rng.random()
            if kind < 0.25:
                words.append(rng.choice(GOOD))
                mood += sign
            elif kind < 0.5:
                words.append(rng.choice(BAD))
                mood -= sign
            else:
                words.append(rng.choice(FILLER))
        words = (words + [rng.choice(FILLER) for _ in range(LENGTH)])[:LENGTH]
    return words, float(mood > 0)


class SentimentLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.lstm = nn.LSTM(24, 48, num_layers=8 if BUG == "eight_layers" else 1)
        self.fc1 = nn.Linear(48, 32)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, tokens):
        x = self.embed(tokens)
        if BUG == "batch_as_time":
            out, _ = self.lstm(x)
            last = out[:, -1]
        else:
            if BUG == "view_as_time_first":
                x = x.reshape(x.size(1), x.size(0), -1)
            else:
                x = x.transpose(0, 1)
            out, _ = self.lstm(x)
            last = out[-1]
        hidden = torch.relu(self.fc1(last))
        if BUG == "dropout_without_flag":
            hidden = F.dropout(hidden, 0.5)
        else:
            hidden = F.dropout(hidden, 0.5, training=self.training)
        return self.fc2(hidden).squeeze(1)


def validate(model, tokens, labels):
    model.eval()
    with torch.no_grad():
        hits = (model(tokens) > 0) == (labels > 0.5)
    if BUG != "left_in_eval":
        model.train()
    return hits.float().mean().item()


def run():
    torch.manual_seed(SEED)
    rng = random.Random(11)
    rows = [review(rng) for _ in range(4000)]
    tokens, labels = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    model = SentimentLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    model.train()
    for step in range(200):
        batch = torch.randint(0, 3500, (BATCH,))
        loss = F.binary_cross_entropy_with_logits(model(tokens[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            print(
                step, round(loss.item(), 3), "valid", round(validate(model, tokens[3500:], labels[3500:]), 3)
            )
    print(f"metric {validate(model, tokens[3500:], labels[3500:]):.4f}")


run()
