"""An image classifier in the shape of pytorch/examples: arguments, loaders, train and test functions, a schedule."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(16 * 16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout(x), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if index % args.log_interval == 0:
            print(f"epoch {epoch} batch {index} loss {loss.item()!r}")


def test(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for data, target in loader:
            total += F.nll_loss(model(data), target, reduction="sum").item()
    print("test", total / len(loader.dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(1)
    target = torch.randint(0, 10, (128,))
    data = 0.3 * torch.randn(128, 1, 12, 12) + target.view(-1, 1, 1, 1) / 5
    dataset = TensorDataset(data, target)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=args.workers)
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        train(args, model, loader, optimizer, epoch)
        test(model, DataLoader(dataset, batch_size=64))
        scheduler.step()
    print("weights", sum(each.double().sum().item() for each in model.parameters()), torch.rand(1).item())


if __name__ == "__main__":
    main()
