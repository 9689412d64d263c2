import torch
from sklearn.datasets import load_digits
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Linear(128, 10)

    def forward(self, images):
        x = self.pool(self.features(images))
        return self.classifier(x.flatten(1))


def load():
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def main():
    torch.manual_seed(0)
    images, labels = load()
    train_images, train_labels = images[:1200], labels[:1200]
    test_images, test_labels = images[1200:], labels[1200:]
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(4):
        model.train()
        order = torch.randperm(len(train_images))
        for batch in order.split(64):
            loss = loss_fn(model(train_images[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
    print(f"score {right:.4f}")


main()
