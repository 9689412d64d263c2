"""LanguageModel: a causal Transformer from token ids to logits, with cached generation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from leadline.errors import InputError
from leadline.nn import init
from leadline.nn.attention import Context, KeyValueCache, attention_mask
from leadline.nn.options import Options
from leadline.nn.scheme import Layout, Place, Scheme, check_depth
from leadline.nn.schemes import find_scheme
from leadline.nn.transformer import StackPositions, build_stack
from leadline.nn.uninitialized import make_linear

DEFAULTS = Options()
DECODER_ONLY = Layout(sublayers=2, stack="decoder")


class LanguageModel(nn.Module):
    r"""A causal Transformer from token ids (batch, time) to next-token logits (batch, time, vocab).

    Embeddings start with a unit second moment (times the scheme's embedding gain) and the output matrix with variance
    $1/d$, where $d$ is the width, so that the first loss is close to $\ln V + \tfrac12$ for a vocabulary of size $V$.
    With `tie` the output matrix is the embedding over $\sqrt{d}$, which has the same variance. `generate` continues a
    prompt with a key-value cache.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and a generator)
        self,
        vocab: int,
        width: int,
        heads: int,
        depth: int,
        *,
        scheme: str | Scheme | None = None,
        max_len: int = 512,
        options: Options = DEFAULTS,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_depth(depth)
        self.vocab, self.width, self.heads, self.depth, self.max_len = vocab, width, heads, depth, max_len
        self.scheme, self.dropout = find_scheme(scheme, depth), options.dropout
        gain = self.scheme.embedding_gain(Place(index=0, depth=depth, layout=DECODER_ONLY))
        self.embedding = make_embedding(vocab, width, gain=gain, generator=generator)
        self.norm_embedding = options.make_norm(width) if self.scheme.embedding_norm else None
        self.positions = StackPositions(
            width, heads, kind=options.positions, max_len=max_len, generator=generator
        )
        self.stack = build_stack((width, heads, depth), self.scheme, options, DECODER_ONLY, generator)
        self.head = None if options.tie else make_head(vocab, self.scheme, width, generator=generator)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check(tokens)
        visible = attention_mask(mask, (tokens.shape[0], tokens.shape[1]), causal=True)
        rotation = self.positions.rotation(0, tokens.shape[1])
        context = Context(mask=visible, causal=visible is None, rotation=rotation)
        return self._logits(self.stack(self._embed(tokens, 0), context))

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """`tokens` (batch, time) followed by `length` sampled tokens; `temperature=0` takes the most likely one.

        Each step feeds only the new token: the keys and values of the others are cached. Runs in eval mode.
        """
        self._check(tokens, extra=length)
        _check_sampling(temperature, top_k)
        training = self.training
        self.eval()
        try:
            return self._generate(tokens, length, temperature, top_k, generator)
        finally:
            self.train(training)

    def _generate(
        self, tokens: Tensor, length: int, temperature: float, top_k: int | None, generator: Generator | None
    ) -> Tensor:
        caches = self.make_caches(tokens.shape[0], tokens.shape[1] + length)
        new_tokens = tokens
        for _ in range(length):
            logits = self.step(new_tokens, caches)[:, -1]
            new_tokens = sample_token(logits, temperature=temperature, top_k=top_k, generator=generator)
            tokens = torch.cat((tokens, new_tokens), dim=1)
        return tokens

    def make_caches(self, batch: int, length: int) -> list[KeyValueCache]:
        """Empty caches for `step`, one per block, with room for `length` tokens."""
        shape = (batch, self.heads, length, self.width // self.heads)
        return [KeyValueCache(shape, self.embedding.weight) for _ in range(self.depth)]

    def step(self, tokens: Tensor, caches: list[KeyValueCache]) -> Tensor:
        """Logits of `tokens`, which follow those in `caches`; appends them to the caches."""
        start, time = caches[0].length, tokens.shape[1]
        mask = _causal_from(start, time, tokens.device) if start and time > 1 else None
        causal = start == 0 and time > 1
        context = Context(mask=mask, causal=causal, rotation=self.positions.rotation(start, time))
        return self._logits(self.stack(self._embed(tokens, start), context, (), caches))

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        x = self.positions(self.embedding(tokens), start)
        if self.norm_embedding is not None:
            x = self.norm_embedding(x)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def _logits(self, x: Tensor) -> Tensor:
        if self.head is not None:
            logits: Tensor = self.head(x)
            return logits
        return F.linear(x, self.embedding.weight).mul(self.width**-0.5)

    def _check(self, tokens: Tensor, *, extra: int = 0) -> None:
        check_tokens(tokens)
        self.positions.check(tokens.shape[1] + extra)


def check_tokens(tokens: Tensor, name: str = "tokens") -> None:
    """Raise unless `tokens` are ids of shape (batch, time)."""
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise InputError(
            expected=f"{name}: whole numbers of shape (batch, time)",
            got=f"{tokens.dtype} of shape {tuple(tokens.shape)}",
            fix="pass token ids; for vectors use Encoder",
        )


def _check_sampling(temperature: float, top_k: int | None) -> None:
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise InputError(
            expected="temperature: 0 or more; top_k: 1 or more, or None",
            got=f"temperature={temperature}, top_k={top_k}",
            fix="pass temperature=0 for the most likely token, or 1 to sample from the model's distribution",
        )


def make_embedding(vocab: int, width: int, *, gain: float, generator: Generator | None) -> nn.Embedding:
    """An embedding of unit second moment times `gain` squared."""
    weight = torch.empty(vocab, width)
    return nn.Embedding(vocab, width, _weight=init.normal_(weight, gain**2, generator=generator))


def make_head(vocab: int, scheme: Scheme, width: int, *, generator: Generator | None) -> nn.Linear:
    """The output matrix, with variance 1/d, or zero if the scheme says so."""
    head = make_linear(width, vocab, bias=False)
    if scheme.zero_head:
        nn.init.zeros_(head.weight)
    else:
        init.normal_(head.weight, init.lecun(width, vocab), generator=generator)
    return head


def sample_token(
    logits: Tensor, *, temperature: float, top_k: int | None, generator: Generator | None
) -> Tensor:
    """One token id per row, (batch, 1), sampled from logits (batch, vocab)."""
    if temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


def _causal_from(start: int, time: int, device: torch.device) -> Tensor:
    """The causal mask of `time` new queries over `start + time` keys."""
    query = torch.arange(start, start + time, device=device)
    return torch.arange(start + time, device=device)[None, :] <= query[:, None]
