"""Texts that are classified, tagged, filled in or translated."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

WORDS = 47


def padded_text(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Random words, 0 where padded, and a mask that is True where padded."""
    text = torch.randint(1, WORDS, (len(lengths), width))
    padded = torch.arange(width)[None, :] >= torch.tensor(lengths)[:, None]
    return text.masked_fill(padded, 0), padded


# Sentiment with nn.TransformerEncoder.


class SentimentClassifier(nn.Module):
    def __init__(self, bug: str, d_model: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, d_model, padding_idx=0)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, d_model))
        layer = nn.TransformerEncoderLayer(d_model, 4, 64, batch_first=bug != "batch_first forgotten")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(d_model, 2)
        self.bug = bug

    def forward(self, text: Tensor, padding_mask: Tensor) -> Tensor:
        x = self.embedding(text) + self.position[:, : text.size(1)]
        if self.bug == "batch_first forgotten" or self.bug == "mask not passed to the encoder":
            x = self.encoder(x)
        else:
            inverted = self.bug == "mask inverted"
            x = self.encoder(x, src_key_padding_mask=~padding_mask if inverted else padding_mask)
        keep = (~padding_mask).unsqueeze(-1).float()
        pooled = x.mean(1) if self.bug == "mean over the padding, too" else (x * keep).sum(1) / keep.sum(1)
        logits = self.classifier(pooled)
        return logits.softmax(-1) if self.bug == "softmax before cross entropy" else logits


@problem(
    "sentiment-transformer",
    "text classification",
    bug("batch_first forgotten", "mixed-samples", "encoder.layers.0.self_attn"),
    bug("mask not passed to the encoder", "unmasked-padding", "input[0]"),
    bug("mask inverted", "unmasked-padding", "input[0]"),
    bug("mean over the padding, too", "unmasked-padding", "input[0]"),
    bug("softmax before cross entropy", "squashed-logits", "softmax"),
    bug("labels from a constant column", "single-answer", "100 %"),
    bug("embedding left out of the optimizer", "forgotten-parameters", "embedding.weight", note=True),
)
def sentiment_transformer(bug: str) -> Case:
    model = SentimentClassifier(bug)
    text, padded = padded_text([9, 12, 5, 7, 12, 10, 6, 8] * 2, 12)
    labels = torch.randint(0, 2, (16,))
    if bug == "labels from a constant column":
        labels = torch.ones_like(labels)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "embedding left out of the optimizer" or not name.startswith("embedding")
    ]
    return Case(model, (text, padded), labels, nn.CrossEntropyLoss(), torch.optim.Adam(trained, lr=1e-3))


# A convolution over words, and attention pooling, as in many notebooks.


class TextCNN(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 20)
        convs = {f"conv{k}": nn.Conv1d(20, 16, k, padding=k // 2) for k in (3, 5)}
        self.convs = convs if bug == "branches in a dict" else nn.ModuleDict(convs)
        self.score = nn.Linear(32, 1)
        self.fc = nn.Linear(32, 4)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        e = self.emb(x).permute(0, 2, 1)
        if self.bug == "view instead of permute":
            e = self.emb(x).view(20, x.size(0), x.size(1)).permute(1, 0, 2)
        h = torch.cat([F.relu(conv(e)) for conv in self.convs.values()], dim=1).transpose(1, 2)
        a = torch.softmax(self.score(h), dim=0 if self.bug == "attention weights over the batch" else 1)
        return self.fc((a * h).sum(1))


@problem(
    "text-cnn",
    "text classification",
    bug("branches in a dict", "unregistered-parameters", "4"),
    bug("view instead of permute", "mixed-samples"),
    bug("attention weights over the batch", "mixed-samples", "softmax"),
    bug("nll_loss on the scores", "unnormalized-scores", "nll_loss", "logits"),
    bug("text column is empty", "idle-input", "input"),
    bug("minus sign before the loss", "negated-loss"),
)
def text_cnn(bug: str) -> Case:
    net = TextCNN(bug)
    text = torch.randint(0, WORDS, (12, 15))
    if bug == "text column is empty":
        text = torch.zeros_like(text)
    criterion = nn.NLLLoss() if bug == "nll_loss on the scores" else nn.CrossEntropyLoss()

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        value = criterion(scores, labels)
        return -value if bug == "minus sign before the loss" else value

    return Case(net, text, torch.randint(0, 4, (12,)), loss, torch.optim.Adam(net.parameters()))


# A tagger: two directions, one label per word, padding at the end.


class BiLSTMTagger(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, 24)
        self.lstm = nn.LSTM(24, 16, bidirectional=True, batch_first=bug != "batch_first forgotten")
        self.hidden2tag = nn.Linear(32, 6)
        self.bug = bug

    def forward(self, sentence: Tensor, mask: Tensor) -> Tensor:
        embeds = self.word_embeddings(sentence)
        if self.bug == "padding runs backward into the words":
            return self.hidden2tag(self.lstm(embeds)[0])
        lengths = mask.sum(1)
        if self.bug == "batch_first forgotten":
            return self.hidden2tag(self.lstm(embeds)[0])
        packed = nn.utils.rnn.pack_padded_sequence(embeds, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=sentence.size(1)
        )
        return self.hidden2tag(hidden)


@problem(
    "bilstm-tagger",
    "tagging",
    bug("padding runs backward into the words", "unmasked-padding", "sentence"),
    bug("batch_first forgotten", "mixed-samples", "lstm"),
    bug("tags of the padding count", "single-answer or unmasked-padding", "pad"),
    bug("tags are all O", "single-answer", "100 %"),
    bug("log_softmax forgotten", "unnormalized-scores", "nll_loss"),
)
def bilstm_tagger(bug: str) -> Case:
    model = BiLSTMTagger(bug)
    sentence, padded = padded_text([11, 4, 6, 8, 3, 7], 11)
    tags = torch.randint(1, 6, sentence.shape)
    ignored = -100
    if bug == "tags are all O":
        tags = torch.ones_like(tags)
    tags = tags.masked_fill(padded, 0 if bug == "tags of the padding count" else ignored)

    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        if bug == "log_softmax forgotten":
            return F.nll_loss(scores.flatten(0, 1), tags.flatten(), ignore_index=ignored)
        return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=ignored)

    batch = {"sentence": sentence, "mask": (~padded).long()}
    return Case(model, batch, tags, loss, torch.optim.SGD(model.parameters(), lr=0.1))


# A masked language model: sees both directions on purpose.


class MaskedLM(nn.Module):
    def __init__(self, bug: str, hidden: int = 32) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS + 1, hidden)
        self.pos = nn.Embedding(20, hidden)
        self.layers = nn.ModuleList(nn.MultiheadAttention(hidden, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.dense = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.decoder = nn.Linear(hidden, WORDS)
        self.dropout = nn.Dropout(0.1)
        self.bug = bug

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.word(input_ids) + self.pos.weight[: input_ids.size(1)]
        ignore = None if self.bug == "attention mask not used" else attention_mask == 0
        for attention, norm, dense in zip(self.layers, self.norms, self.dense, strict=True):
            y = norm(x)
            x = x + attention(y, y, y, key_padding_mask=ignore, need_weights=False)[0]
            if self.bug == "feed-forward result not assigned":
                x + F.gelu(dense(x))
            else:
                x = x + F.gelu(dense(x))
        logits = self.decoder(self.dropout(x))
        return F.cross_entropy(logits.transpose(1, 2), labels), logits


@problem(
    "masked-lm",
    "masked language model",
    bug("attention mask not used", "unmasked-padding", "input_ids"),
    bug("feed-forward result not assigned", "discarded-results", "dense.0"),
    bug("no label survives the mask", "single-answer or non-finite", "ignored"),
    bug("left in eval mode", "evaluation-mode", "dropout"),
)
def masked_lm(bug: str) -> Case:
    model = MaskedLM(bug)
    text, padded = padded_text([13, 8, 10, 13, 6, 9], 13)
    masked = (torch.rand(text.shape) < 0.3) & ~padded
    labels = text.masked_fill(~masked, -100)
    if bug == "no label survives the mask":
        labels = torch.full_like(labels, -100)
    if bug == "left in eval mode":
        model.eval()
    batch = {
        "input_ids": text.masked_fill(masked, WORDS),
        "attention_mask": (~padded).long(),
        "labels": labels,
    }
    return Case(model, batch, None, lambda output: output[0], torch.optim.AdamW(model.parameters(), lr=1e-3))


# Translation with nn.Transformer.


class Seq2SeqTransformer(nn.Module):
    def __init__(self, bug: str, emb_size: int = 32) -> None:
        super().__init__()
        self.src_tok_emb = nn.Embedding(WORDS, emb_size)
        self.tgt_tok_emb = nn.Embedding(WORDS, emb_size)
        self.transformer = nn.Transformer(emb_size, 4, 1, 2, 64, batch_first=True)
        self.generator = nn.Linear(emb_size, WORDS)
        position = torch.arange(30).unsqueeze(1) / 10000 ** (torch.arange(0, emb_size, 2) / emb_size)
        self.register_buffer("pe", torch.stack([position.sin(), position.cos()], dim=-1).flatten(1))
        self.bug = bug

    def embed(self, table: nn.Embedding, words: Tensor) -> Tensor:
        return table(words) * math.sqrt(self.pe.size(1)) + self.pe[: words.size(1)]

    def forward(self, src: Tensor, tgt: Tensor, src_padding: Tensor) -> Tensor:
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        if self.bug == "no mask on the target":
            tgt_mask = None
        padding = None if self.bug == "source padding visible" else src_padding
        source = tgt if self.bug == "the target is passed as source" else src
        outs = self.transformer(
            self.embed(self.src_tok_emb, source),
            self.embed(self.tgt_tok_emb, tgt),
            tgt_mask=tgt_mask,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.generator(outs)


@problem(
    "translation",
    "encoder-decoder",
    bug("no mask on the target", "visible-answer", "input[1]", "transformer.decoder.layers.0.self_attn"),
    bug("decoder gets the words it must predict", "shifted-targets", "input[1]", "own position"),
    bug("source padding visible", "unmasked-padding", "input[0]"),
    bug("the target is passed as source", "visible-answer", "input[1]"),
    bug("generator added after the optimizer", "forgotten-parameters", "generator.weight"),
)
def translation(bug: str) -> Case:
    model = Seq2SeqTransformer(bug)
    width = 14
    src, src_padding = padded_text([14, 9, 11, 6], width)
    tgt = torch.randint(1, WORDS, (4, width + 1))
    decoder_input, expected = tgt[:, :-1].clone(), tgt[:, 1:].clone()
    if bug == "decoder gets the words it must predict":
        decoder_input = expected.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    if bug == "generator added after the optimizer":
        model.generator = nn.Linear(32, WORDS)
    return Case(
        model,
        (src, decoder_input, src_padding),
        expected,
        lambda logits, words: F.cross_entropy(logits.reshape(-1, WORDS), words.reshape(-1)),
        optimizer,
    )


# Recurrent encoder and decoder with attention.


class AttnSeq2Seq(nn.Module):
    def __init__(self, bug: str, hidden: int = 24) -> None:
        super().__init__()
        self.src = nn.Embedding(WORDS, hidden)
        self.tgt = nn.Embedding(WORDS, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, WORDS)
        self.bug = bug

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.src(source))
        if self.bug == "encoder detached":
            memory, state = memory.detach(), state.detach()
        if self.bug == "the encoder is not used":
            memory, state = torch.zeros_like(memory), torch.zeros_like(state)
        hidden, _ = self.decoder(self.tgt(target), state)
        scores = torch.einsum("bth,bsh->bts", hidden, memory) / hidden.size(-1) ** 0.5
        weights = scores.softmax(0 if self.bug == "attention over the batch" else -1)
        context = torch.einsum("bts,bsh->bth", weights, memory)
        if self.bug == "keys from another sample":
            context = torch.einsum("bts,csh->bth", weights, memory)
        return self.out(torch.tanh(self.combine(torch.cat([hidden, context], -1))))


@problem(
    "gru-attention",
    "encoder-decoder",
    bug("encoder detached", "blocked-path", "encoder"),
    bug("the encoder is not used", "idle-input", "source", note=True),
    bug("attention over the batch", "mixed-samples", "softmax"),
    bug("keys from another sample", "mixed-samples", "einsum"),
    bug("teacher forcing with the same word", "shifted-targets", "target", "own position"),
    bug("two words ahead", "shifted-targets", "target", "2 positions"),
)
def gru_attention(bug: str) -> Case:
    model = AttnSeq2Seq(bug)
    source, words = torch.randint(0, WORDS, (5, 9)), torch.randint(0, WORDS, (5, 14))
    ahead = {"teacher forcing with the same word": 0, "two words ahead": 2}.get(bug, 1)
    batch = {"source": source, "target": words[:, :12].clone()}
    expected = words[:, ahead : ahead + 12].clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, batch, expected, lambda y, t: F.cross_entropy(y.transpose(1, 2), t), optimizer)
