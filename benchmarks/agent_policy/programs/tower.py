import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, width)
        self.linear2 = nn.Linear(width, width)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.linear2(self.act(self.linear1(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, depth=16, width=48):
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def make_data(samples):
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(samples, 12, generator=generator)
    first = (x[:, 0] * x[:, 1] > 0).long()
    second = (x[:, 2] + x[:, 3].abs() > 0.8).long()
    return x, 2 * first + second


if __name__ == "__main__":
    torch.manual_seed(2)
    x, y = make_data(2400)
    model = Tower()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(300):
        rows = torch.randint(0, 2000, (64,))
        loss = loss_fn(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"score {(model(x[2000:]).argmax(1) == y[2000:]).float().mean():.4f}")
