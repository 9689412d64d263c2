import torch
from torch import nn
from torch.optim import AdamW

TOKENS, LENGTH = 16, 12


class SetClassifier(nn.Module):
    def __init__(self, width=32, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, dim_feedforward=64, dropout=dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens))
        return self.head(self.norm(hidden.mean(dim=1)))


def make_data(samples):
    """Whether tokens 0 and 1 both occur."""
    generator = torch.Generator().manual_seed(8)
    tokens = torch.randint(2, TOKENS, (samples, LENGTH), generator=generator)
    places = torch.rand(samples, LENGTH, generator=generator).argsort(1)[:, :2]
    present = torch.rand(samples, 2, generator=generator) < 0.7
    for token in (0, 1):
        rows = present[:, token].nonzero().squeeze(1)
        tokens[rows, places[rows, token]] = token
    return tokens, present.all(1).long()


def train(steps=260, rate=2e-3):
    torch.manual_seed(5)
    tokens, labels = make_data(3000)
    model = SetClassifier()
    optimizer = AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(steps):
        rows = torch.randint(0, 2500, (64,))
        loss = criterion(model(tokens[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"score {(model(tokens[2500:]).argmax(1) == labels[2500:]).float().mean():.4f}")


if __name__ == "__main__":
    train()
