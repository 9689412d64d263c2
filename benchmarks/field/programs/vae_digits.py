"""A variational autoencoder of handwritten digits."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class VAE(nn.Module):
    def __init__(self, bug, latent=6):
        super().__init__()
        self.bug = bug
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mu, self.logvar = nn.Linear(96, latent), nn.Linear(96, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())

    def reparametrize(self, mu, logvar):
        noise = torch.randn_like(mu)
        if self.bug == "variance_as_deviation":
            return mu + noise * logvar.exp()
        return mu + noise * (0.5 * logvar).exp()

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decoder(self.reparametrize(mu, logvar)), mu, logvar


def terms(model, x):
    reconstruction, mu, logvar = model(x)
    bce = F.binary_cross_entropy(reconstruction, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / len(x)
    return bce, kl


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kl-coeff", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    digits = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
    train, test = digits[:1400], digits[1400:]
    model = VAE(args.bug)
    if args.bug == "encoder_only":
        parameters = [*model.encoder.parameters(), *model.mu.parameters(), *model.logvar.parameters()]
    else:
        parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    for epoch in range(25):
        for batch in train[torch.randperm(len(train))].split(100):
            bce, kl = terms(model, batch)
            loss = bce if args.bug == "kl_coeff_unused" else bce + args.kl_coeff * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: bce {bce.item():.2f} kl {kl.item():.2f}")
    mean = train.mean(0).clamp(0.01, 0.99).expand_as(test)
    constant = F.binary_cross_entropy(mean, test, reduction="sum") / len(test)
    with torch.no_grad():
        bound = sum(sum(terms(model, test)) for _ in range(5)) / 5
    print(f"metric {(1 - bound / constant).item():.4f}")


if __name__ == "__main__":
    main()
