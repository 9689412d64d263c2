"""Handwritten digits, stored class by class as in a folder, with a small convolutional network."""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


class DigitFolder(Dataset):
    """Images in the order of their classes; a column of the table says which split each belongs to."""

    def __init__(self, split):
        raw = load_digits()
        order = np.argsort(raw.target, kind="stable")
        part = np.random.RandomState(1).permutation(len(order)) % 5 == 0
        mask = part if split == "test" else ~part
        images = torch.tensor(raw.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
        self.labels = torch.tensor(raw.target[order])[mask]
        if args.bug == "images_without_mask":
            self.images = images
        else:
            self.images = images[mask]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.dropout = nn.Dropout(0.3)
        self.classifier = nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = self.classifier(self.dropout(self.features(x)))
        if args.bug == "softmax_output":
            x = torch.softmax(x, dim=1)
        return x


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


train_loader = DataLoader(DigitFolder("train"), batch_size=64, shuffle=args.bug != "not_shuffled")
test_loader = DataLoader(DigitFolder("test"), batch_size=128)
model = ConvNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
model.train()
for epoch in range(5):
    if args.bug != "eval_after_validation":
        model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if args.bug == "schedule_per_batch":
            scheduler.step()
    if args.bug != "schedule_per_batch":
        scheduler.step()
    print(f"epoch {epoch} loss {loss.item():.3f} test accuracy {accuracy(model, test_loader):.3f}")
print(f"metric {accuracy(model, test_loader):.4f}")
