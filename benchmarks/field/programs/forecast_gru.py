"""The next value of a sum of waves at every time, by a GRU; training is interrupted and resumed once."""

import argparse
import copy

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def series(n, length=40):
    t = torch.arange(length + 1)
    waves = [torch.sin(t * (w + 0.1 * torch.rand(n, 1)) + 6.3 * torch.rand(n, 1)) for w in (0.3, 0.8)]
    values = sum(waves) / 1.4 + 0.05 * torch.randn(n, length + 1)
    return values[:, :-1, None], values[:, 1:, None]


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        both = args.bug == "bidirectional"
        self.gru = nn.GRU(1, hidden, batch_first=True, bidirectional=both)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        if args.bug == "bidirectional":
            forward, backward = out.chunk(2, dim=2)
            out = forward + backward
        return self.fc(out)


def make_training():
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    # There is no decay by default.
    gamma = 0.0 if args.bug == "gamma_zero" else 1.0
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=gamma)


torch.manual_seed(args.seed)
model, optimizer, scheduler = make_training()
checkpoint = None
for step in range(150):
    if step == 75:
        checkpoint = {
            "model": copy.deepcopy(model.state_dict()),
            "optimizer": copy.deepcopy(optimizer.state_dict()),
        }
        model, optimizer, scheduler = make_training()
        model.load_state_dict(checkpoint["model"])
        if args.bug != "optimizer_not_resumed":
            optimizer.load_state_dict(checkpoint["optimizer"])
    x, y = series(24)
    loss = nn.functional.mse_loss(model(x), y)
    if args.bug != "no_zero_grad":
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 25 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    x, y = series(300)
    last = model(x)[:, -1]
print(f"metric {(1 - ((last - y[:, -1]) ** 2).mean() / y[:, -1].var()).item():.4f}")
