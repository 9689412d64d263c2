import torch
from torch import nn

PAD, LENGTH = 0, 16


class Reader(nn.Module):
    def __init__(self, vocabulary=20, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, tokens, lengths):
        states, _ = self.lstm(self.embedding(tokens))
        last = states[torch.arange(len(tokens)), lengths - 1]
        return self.head(last).squeeze(-1)


def make_data(samples):
    """Whether token 5 comes later than token 9."""
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(10, 20, (samples, LENGTH), generator=generator)
    lengths = torch.randint(8, LENGTH + 1, (samples,), generator=generator)
    labels = torch.randint(0, 2, (samples,), generator=generator)
    for row in range(samples):
        first, second = sorted(torch.randperm(8, generator=generator)[:2].tolist())
        tokens[row, first], tokens[row, second] = (9, 5) if labels[row] else (5, 9)
        tokens[row, lengths[row] :] = PAD
    return tokens, lengths, labels.float()


torch.manual_seed(0)
tokens, lengths, labels = make_data(1600)
model = Reader()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.train()
for epoch in range(10):
    for rows in torch.randperm(1280).split(64):
        scores = model(tokens[rows], lengths[rows])
        loss = criterion(scores, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

model.eval()
with torch.no_grad():
    guessed = model(tokens[1280:], lengths[1280:]) > 0
print(f"score {(guessed == labels[1280:].bool()).float().mean():.4f}")
