"""Recommendations from clicks: factors of users and items, with sampled negatives."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS = 150, 200


class Factors(nn.Module):
    def __init__(self, bug, width=16):
        super().__init__()
        self.bug = bug
        self.user, self.item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        self.bias = nn.Embedding(ITEMS, 1)

    def forward(self, users, items):
        score = (self.user(users) * self.item(items)).sum(1) + self.bias(items).squeeze(1)
        return torch.sigmoid(score) if self.bug == "sigmoid_twice" else score


def clicks():
    gen = torch.Generator().manual_seed(2)
    taste, kind = torch.randn(USERS, 4, generator=gen), torch.randn(ITEMS, 4, generator=gen)
    liked = (taste @ kind.T + 0.5 * torch.randn(USERS, ITEMS, generator=gen)) > 2.2
    pairs = liked.nonzero()
    return pairs[torch.randperm(len(pairs), generator=gen)], liked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    pairs, liked = clicks()
    train, test = pairs[:-600], pairs[-600:]
    model = Factors(args.bug)
    n_items = model.item.weight.shape[1] if args.bug == "negatives_of_factors" else model.item.weight.shape[0]
    loader = DataLoader(TensorDataset(train), batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(5):
        for (batch,) in loader:
            users, items = batch.T
            negatives = torch.randint(0, n_items, (len(users),))
            score = model(torch.cat([users, users]), torch.cat([items, negatives]))
            truth = torch.cat([torch.ones(len(users)), torch.zeros(len(users))])
            loss = criterion(score, truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        users, items = test.T
        others = torch.randint(0, ITEMS, (50, len(users)))
        known = liked[users, others]
        wins = (model(users, items) > torch.stack([model(users, row) for row in others])).float()
    print(f"metric {wins[~known].mean().item():.4f}")


if __name__ == "__main__":
    main()
