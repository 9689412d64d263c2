import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_data(samples, generator):
    x = torch.randn(samples, 8, generator=generator)
    price = x[:, 0] * x[:, 1] + x[:, 2].abs() + 0.5 * x[:, 3] - x[:, 4].clamp(min=0)
    return x, price


class PriceModel(nn.Module):
    def __init__(self, hidden=64, dropout=0.0):
        super().__init__()
        self.fc1 = nn.Linear(8, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = self.drop(F.relu(self.fc2(x)))
        return self.out(x).squeeze(1)


def train():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(7)
    x, y = make_data(1600, generator)
    test_x, test_y = make_data(400, generator)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    net = PriceModel(dropout=0.0)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    net.train()
    for _ in range(16):
        for features, target in loader:
            opt.zero_grad()
            loss = F.mse_loss(net(features), target)
            loss.backward()
            opt.step()
    net.eval()
    with torch.no_grad():
        error = (net(test_x) - test_y).square().mean()
    print(f"score {1 - error / test_y.var():.4f}")


if __name__ == "__main__":
    train()
