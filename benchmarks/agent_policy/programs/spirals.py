import math

import torch
from torch import nn

torch.manual_seed(0)


def spirals(samples):
    label = torch.randint(0, 3, (samples,))
    radius = torch.rand(samples)
    angle = 2.5 * radius + label * 2 * math.pi / 3 + 0.1 * torch.randn(samples)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


train_x, train_y = spirals(1024)
test_x, test_y = spirals(512)
model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
model.train()
for epoch in range(20):
    order = torch.randperm(len(train_x))
    for start in range(0, len(train_x), 64):
        rows = order[start : start + 64]
        optimizer.zero_grad()
        logits = model(train_x[rows])
        loss = criterion(logits, train_y[rows])
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    accuracy = (model(test_x).argmax(1) == test_y).float().mean()
print(f"score {accuracy:.4f}")
