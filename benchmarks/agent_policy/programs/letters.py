import torch
from torch import nn
from torch.nn import functional as F

VOCAB, LENGTH, WIDTH = 12, 24, 48


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(samples, generator):
    """Each letter depends on the one before it and on the one two places back."""
    rows = torch.randint(0, VOCAB, (samples, LENGTH + 1), generator=generator)
    for place in range(2, LENGTH + 1):
        rule = (rows[:, place - 1] + rows[:, place - 2]) % VOCAB
        noise = torch.rand(samples, generator=generator) < 0.05
        rows[:, place] = torch.where(noise, rows[:, place], rule)
    return rows


torch.manual_seed(0)
generator = torch.Generator().manual_seed(3)
train_rows, test_rows = text(2048, generator), text(256, generator)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(360):
    batch = train_rows[torch.randint(0, len(train_rows), (32,))]
    inputs, targets = batch[:, :-1], batch[:, 1:]
    logits = model(inputs)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():  # the next letter, from nothing but the letters before it
    right = [
        (model(test_rows[:, :end])[:, -1].argmax(-1) == test_rows[:, end]).float() for end in (12, 18, 23)
    ]
print(f"score {torch.stack(right).mean():.4f}")
