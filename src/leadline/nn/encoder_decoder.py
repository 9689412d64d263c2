"""EncoderDecoder: a Transformer from source token ids to the logits of target tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from leadline.nn.attention import Context, attention_mask
from leadline.nn.language import DEFAULTS, check_tokens, make_embedding, make_head
from leadline.nn.options import Options
from leadline.nn.scheme import Layout, Place, Scheme, check_depth
from leadline.nn.schemes import find_scheme
from leadline.nn.transformer import StackPositions, build_stack


class EncoderDecoder(nn.Module):
    """A Transformer from source ids (batch, source time) and target ids (batch, time) to logits (batch, time, vocab).

    The encoder attends to the whole source; the decoder attends to earlier target tokens and, by cross-attention, to
    the encoder's output. Both stacks have `depth` blocks unless `decoder_depth` is given; DeepNorm, Magneto and
    T-Fixup use their constants for an encoder-decoder pair. Both sides share one embedding. Masks are (batch, time),
    True where there is a token.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and a generator)
        self,
        vocab: int,
        width: int,
        heads: int,
        depth: int,
        *,
        decoder_depth: int | None = None,
        scheme: str | Scheme | None = None,
        max_len: int = 512,
        options: Options = DEFAULTS,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        blocks = depth if decoder_depth is None else decoder_depth
        check_depth(depth)
        check_depth(blocks)
        self.scheme = find_scheme(scheme, max(depth, blocks))
        self.width, self.dropout = width, options.dropout
        source = Layout(sublayers=2, stack="encoder", partner=blocks)
        target = Layout(sublayers=3, stack="decoder", partner=depth)
        gain = self.scheme.embedding_gain(Place(index=0, depth=depth, layout=source))
        self.embedding = make_embedding(vocab, width, gain=gain, generator=generator)
        self.norm_embedding = options.make_norm(width) if self.scheme.embedding_norm else None
        self.positions = StackPositions(
            width, heads, kind=options.positions, max_len=max_len, generator=generator
        )
        self.encoder = build_stack((width, heads, depth), self.scheme, options, source, generator)
        self.decoder = build_stack((width, heads, blocks), self.scheme, options, target, generator)
        self.head = None if options.tie else make_head(vocab, self.scheme, width, generator=generator)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        check_tokens(target, "target")
        memory = self.encode(source, source_mask)
        mask = attention_mask(
            target_mask, (target.shape[0], target.shape[1]), causal=True, name="target_mask"
        )
        rotation = self.positions.rotation(0, target.shape[1])
        context = Context(mask=mask, causal=mask is None, rotation=rotation)
        visible = attention_mask(
            source_mask, (source.shape[0], source.shape[1]), causal=False, name="source_mask"
        )
        x: Tensor = self.decoder(self._embed(target), context, (memory, visible))
        if self.head is None:
            return F.linear(x, self.embedding.weight).mul(self.width**-0.5)
        logits: Tensor = self.head(x)
        return logits

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The output of the encoder (batch, source time, width), to which the decoder attends."""
        check_tokens(source, "source")
        mask = attention_mask(
            source_mask, (source.shape[0], source.shape[1]), causal=False, name="source_mask"
        )
        context = Context(mask=mask, rotation=self.positions.rotation(0, source.shape[1]))
        memory: Tensor = self.encoder(self._embed(source), context)
        return memory

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.positions(self.embedding(tokens))
        if self.norm_embedding is not None:
            x = self.norm_embedding(x)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
