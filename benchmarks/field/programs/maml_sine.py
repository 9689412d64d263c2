"""Model-agnostic meta-learning of sine waves: one inner step on ten points, scored on ten others."""

import argparse
import copy

import torch
from torch import nn
from torch.func import functional_call

INNER_RATE, TASKS = 0.05, 6


def task():
    amplitude, phase = 0.5 + 1.5 * torch.rand(1), 3 * torch.rand(1)
    x = 10 * torch.rand(20, 1) - 5
    y = amplitude * torch.sin(x + phase)
    return (x[:10], y[:10]), (x[10:], y[10:])


class Meta:
    def __init__(self, bug):
        self.bug = bug
        self.net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)

    def adapted_loss(self, support, query):
        if self.bug == "data_is_changed":
            adapted = copy.deepcopy(self.net)
            loss = nn.functional.mse_loss(adapted(support[0]), support[1])
            gradients = torch.autograd.grad(loss, adapted.parameters(), create_graph=True)
            for parameter, gradient in zip(adapted.parameters(), gradients, strict=True):
                parameter.data -= INNER_RATE * gradient.data
            return nn.functional.mse_loss(adapted(query[0]), query[1])
        weights = dict(self.net.named_parameters())
        loss = nn.functional.mse_loss(functional_call(self.net, weights, support[0]), support[1])
        keep = self.bug != "no_create_graph"
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=keep)
        fast = {name: w - INNER_RATE * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        return nn.functional.mse_loss(functional_call(self.net, fast, query[0]), query[1])

    def step(self):
        self.optimizer.zero_grad()
        loss = sum(self.adapted_loss(*task()) for _ in range(TASKS)) / TASKS
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    meta = Meta(args.bug)
    for step in range(250):
        loss = meta.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss:.3f}")
    pairs = [task() for _ in range(200)]
    error = sum(meta.adapted_loss(*pair).item() for pair in pairs) / len(pairs)
    spread = torch.cat([query[1] for _, query in pairs]).var().item()
    print(f"metric {1 - error / spread:.4f}")


if __name__ == "__main__":
    main()
