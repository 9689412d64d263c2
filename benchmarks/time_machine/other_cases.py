"""Tiny models of other packages, in the configuration of a public bug report."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.time_machine import geometric
from benchmarks.time_machine.transformers_cases import SAMPLES, TOKENS
from benchmarks.wiring.known import SIZES, VOCABULARY
from benchmarks.zoo.architecture import noise_target_loss
from benchmarks.zoo.diffusion import MODELS, image, steps
from leadline import Case


def text(samples: int = SAMPLES, length: int = TOKENS) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens after them."""
    tokens = torch.randint(3, VOCABULARY, (samples, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def lightning_demo() -> Case:
    """The Transformer of Lightning's examples, trained as its `LanguageModel` does."""
    demos = importlib.import_module("lightning.pytorch.demos.transformer")
    inputs, targets = text()
    model = demos.Transformer(vocab_size=VOCABULARY, ninp=32, nhead=4, nhid=64, nlayers=2, dropout=0.0)
    return Case(model, (inputs, targets), targets.view(-1), loss=F.nll_loss)


def early_gpt() -> Case:
    """GPT-2 of the first Hugging Face package with `lm_labels`, which returns only the loss."""
    package = importlib.import_module("pytorch_pretrained_bert.modeling_gpt2")
    config = package.GPT2Config(
        vocab_size_or_config_json_file=VOCABULARY, n_positions=32, n_ctx=32, n_embd=32, n_layer=2, n_head=4
    )
    tokens, _ = text()
    model = package.GPT2LMHeadModel(config)
    return Case(model, {"input_ids": tokens, "lm_labels": tokens.clone()}, loss=lambda loss: loss)


class Tagger(nn.Module):
    """A linear emission layer and the conditional random field of the package; returns the negative likelihood."""

    def __init__(self, crf: nn.Module, tags: int) -> None:
        super().__init__()
        self.emissions = nn.Linear(8, tags)
        self.crf = crf

    def forward(self, features: Tensor, tags: Tensor) -> Tensor:
        # The package wants (time, samples).
        likelihood: Tensor = self.crf(self.emissions(features).transpose(0, 1), tags.transpose(0, 1))
        return -likelihood / len(features)


def tagger() -> Case:
    package = importlib.import_module("torchcrf")
    model = Tagger(package.CRF(5), 5)
    return Case(
        model,
        (torch.randn(4, 6, 8), torch.randint(0, 5, (4, 6))),
        loss=lambda negative_likelihood: negative_likelihood,
    )


def named_adapter() -> Case:
    """A small Llama with LoRA adapters that have a name of their own, in the layer for quantized weights.

    That layer only calls the layer that it wraps, so plain linear layers stand for quantized ones, which need a GPU.
    """
    transformers, gptq = (importlib.import_module(name) for name in ("transformers", "peft.tuners.lora.gptq"))
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.q_proj = gptq.QuantLinear(layer.self_attn.q_proj, "mine", r=4, lora_alpha=8)
    for name, parameter in model.named_parameters():
        if "lora_" not in name:  # as peft itself does; it leaves the adapters as their layer made them
            parameter.requires_grad = False
    tokens, _ = text()
    return Case(model, {"input_ids": tokens, "labels": tokens.clone()})


def class_labels_without_embedding() -> Case:
    """A UNet that gets class labels although it was built without an embedding for them."""
    options, _ = MODELS["UNet2DModel"]
    model = importlib.import_module("diffusers").UNet2DModel(**options)
    inputs = {"sample": image(3), "timestep": steps(), "class_labels": torch.randint(0, 5, (2,))}
    return Case(model, {**inputs, "return_dict": False}, torch.randn(2, 3, 16, 16), noise_target_loss)


def qwen_image() -> Case:
    """Image tokens and a text, half of which is padding in one sample."""
    model = importlib.import_module("diffusers").QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    words = torch.randn(2, 8, 16)
    mask = torch.ones(2, 8, dtype=torch.long)
    words[1, 4:], mask[1, 4:] = 0.0, 0
    inputs: dict[str, Any] = {
        "hidden_states": torch.randn(2, 16, 16),
        "encoder_hidden_states": words,
        "encoder_hidden_states_mask": mask,
        "timestep": torch.rand(2),
        "img_shapes": [(1, 4, 4)] * 2,
        "return_dict": False,
    }
    if "txt_seq_lens" in inspect.signature(model.forward).parameters:  # later releases count the mask
        inputs["txt_seq_lens"] = [8, 8]
    return Case(model, inputs, torch.randn(2, 16, 16), noise_target_loss)


def explicit_positions() -> Case:
    """A decoder with rotary positions that gets the positions of its tokens."""
    package = importlib.import_module("x_transformers")
    layers = package.Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True)
    model = package.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=64, attn_layers=layers)
    inputs, targets = text()
    positions = torch.stack([torch.arange(TOKENS) + start for start in (0, 3, 9)])
    return Case(
        model,
        {"x": inputs, "pos": positions},
        targets,
        loss=lambda scores, wanted: F.cross_entropy(scores.transpose(1, 2), wanted),
    )


def masked_autoencoder() -> Case:
    """A masked autoencoder of vit-pytorch, which returns its loss."""
    vit = importlib.import_module("vit_pytorch")
    mae = importlib.import_module("vit_pytorch.mae")
    encoder = vit.ViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=64)
    model = mae.MAE(encoder=encoder, masking_ratio=0.75, decoder_dim=32, decoder_depth=1)
    return Case(model, torch.randn(4, 3, 32, 32), loss=lambda loss: loss)


def graph_attention() -> Case:
    """Two layers of graph attention that classify the nodes of one graph."""
    attention = geometric.layer("GATConv", "gat_conv")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = attention(16, 8, heads=4)
            self.second = attention(32, 5, heads=1, concat=False)

        def forward(self, features: Tensor, edges: Tensor) -> Tensor:
            scores: Tensor = self.second(F.elu(self.first(features, edges)), edges)
            return scores

    features, edges = torch.randn(48, 16), torch.randint(0, 48, (2, 192))
    return Case(Net(), (features, edges), torch.randint(0, 5, (48,)), loss=F.cross_entropy)


def heterogeneous_attention() -> Case:
    """A layer of attention over two kinds of nodes, between two linear layers of the same width."""
    attention = geometric.layer("HGTConv", "hgt_conv")
    kinds = ["author", "paper"]
    relations = [("author", "writes", "paper"), ("paper", "by", "author")]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.ModuleDict({kind: nn.Linear(8, 16) for kind in kinds})
            self.layer = attention(16, 16, (kinds, relations), heads=2)
            self.head = nn.Linear(16, 3)

        def forward(self, author: Tensor, paper: Tensor, writes: Tensor) -> Tensor:
            features = {"author": author, "paper": paper}
            features = {kind: self.inputs[kind](each).relu() for kind, each in features.items()}
            features = self.layer(features, {relations[0]: writes, relations[1]: writes.flip(0)})
            scores: Tensor = self.head(features["paper"])
            return scores

    edges = torch.stack([torch.randint(0, 12, (60,)), torch.randint(0, 20, (60,))])
    inputs = (torch.randn(12, 8), torch.randn(20, 8), edges)
    return Case(Net(), inputs, torch.randint(0, 3, (20,)), loss=F.cross_entropy)
