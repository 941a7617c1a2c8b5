"""Networks that are used as they come: of the package `transformers`, and of `torch.nn`.

All are built from a configuration with random weights, 50,000 to 390,000 of them. Dropout stands
where their authors put it, at their default rates. Where the default is none (ViT, ResNet, ConvNeXt; the
tagger and the table) it is .1: in the places that ViT's configuration has, after every stage of the two
convolutional networks and before their classifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.integrate import data
from benchmarks.integrate.data import CODES, TOPICS, Data

SIZE = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192}
# Attributes of modules that hold a rate; those which are off by default stay off.
RATES = ("p", "dropout_prob", "dropout", "attention_dropout", "activation_dropout", "dropout_p")


@dataclass(frozen=True)
class Network:
    """How to build it, what to call it with and train it on; `updates` of 0 is not trained."""

    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    updates: int = 0
    learning_rate: float = 1e-3
    batch: int = 32


def set_rates(model: nn.Module, drop: float) -> None:
    """Set every dropout that is on."""
    for module in model.modules():
        for name in RATES:
            value = getattr(module, name, None)
            if isinstance(value, float) and value > 0:
                setattr(module, name, drop)


def sampling(model: nn.Module) -> nn.Module:
    """Masks are drawn, batch norm keeps its running statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def outputs(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    """The logits or values, examples first."""
    out = model(**inputs)
    return out.logits if hasattr(out, "logits") else out


def looked_at(y: Any, count: int = 10) -> Any:
    """At most `count` outputs of each example, evenly spread over all steps and classes."""
    table = y.flatten(1)
    if table.shape[1] <= count:
        return table
    return table[:, torch.linspace(0, table.shape[1] - 1, count).long()]


def _hf() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def bert() -> nn.Module:
    hf = _hf()
    config = hf.BertConfig(vocab_size=CODES, max_position_embeddings=64, num_labels=TOPICS, **SIZE)
    return hf.BertForSequenceClassification(config)


def distilbert() -> nn.Module:
    hf = _hf()
    config = hf.DistilBertConfig(
        vocab_size=CODES, max_position_embeddings=64, dim=96, n_layers=3, n_heads=4, hidden_dim=192,
        num_labels=TOPICS,
    )  # fmt: skip
    return hf.DistilBertForSequenceClassification(config)


def gpt2() -> nn.Module:
    hf = _hf()
    config = hf.GPT2Config(
        vocab_size=CODES, n_positions=64, n_embd=96, n_layer=3, n_head=4, n_inner=192, bos_token_id=0,
        eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    hf = _hf()
    config = hf.T5Config(
        vocab_size=CODES, d_model=96, d_kv=24, d_ff=192, num_layers=2, num_heads=4, pad_token_id=0,
        eos_token_id=0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    hf = _hf()
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 192}
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    config = hf.BartConfig(
        vocab_size=CODES, d_model=96, max_position_embeddings=64, pad_token_id=0, bos_token_id=0,
        eos_token_id=0, decoder_start_token_id=0, forced_eos_token_id=0, use_cache=False, **layers,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def vit() -> nn.Module:
    hf = _hf()
    config = hf.ViTConfig(
        image_size=28, patch_size=7, num_channels=1, num_labels=10, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1, **SIZE,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def _with_dropout(model: nn.Module, stages: nn.ModuleList) -> nn.Module:
    """Dropout after every stage, and before the classifier."""
    for i, stage in enumerate(stages):
        stages[i] = nn.Sequential(stage, nn.Dropout(0.1))
    head = model.classifier
    if isinstance(head, nn.Sequential):
        head.insert(len(head) - 1, nn.Dropout(0.1))
    else:
        model.classifier = nn.Sequential(nn.Dropout(0.1), head)
    return model


def resnet() -> nn.Module:
    hf = _hf()
    config = hf.ResNetConfig(
        num_channels=1, embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 1, 1], layer_type="basic",
        num_labels=10,
    )  # fmt: skip
    model = hf.ResNetForImageClassification(config)
    return _with_dropout(model, model.resnet.encoder.stages)


def convnext() -> nn.Module:
    hf = _hf()
    config = hf.ConvNextConfig(
        num_channels=1, patch_size=2, num_stages=3, hidden_sizes=[24, 48, 96], depths=[1, 1, 1],
        num_labels=10, image_size=28,
    )  # fmt: skip
    model = hf.ConvNextForImageClassification(config)
    return _with_dropout(model, model.convnext.encoder.stages)


def efficientnet() -> nn.Module:
    hf = _hf()
    config = hf.EfficientNetConfig(
        num_channels=1, image_size=28, width_coefficient=0.5, depth_coefficient=0.6, hidden_dim=640,
        kernel_sizes=[3, 3, 3], in_channels=[32, 16, 32], out_channels=[16, 32, 64],
        depthwise_padding=[], strides=[1, 2, 2], num_block_repeats=[1, 2, 2], expand_ratios=[1, 4, 4],
        num_labels=10,
    )  # fmt: skip
    return hf.EfficientNetForImageClassification(config)


def wav2vec2() -> nn.Module:
    hf = _hf()
    config = hf.Wav2Vec2Config(
        conv_dim=(32, 32, 32), conv_stride=(5, 4, 4), conv_kernel=(10, 4, 4), num_feat_extract_layers=3,
        layerdrop=0.0, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, apply_spec_augment=False,
        num_labels=10, classifier_proj_size=64, **SIZE,
    )  # fmt: skip
    return hf.Wav2Vec2ForSequenceClassification(config)


class Seq2Seq(nn.Module):
    """`nn.Transformer` between an embedding and a linear output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(CODES, 96), nn.Embedding(64, 96)
        self.transformer = nn.Transformer(96, 4, 2, 2, 192, batch_first=True)
        self.out = nn.Linear(96, CODES)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each next character."""
        place = self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source, target = (self.embed(x) + place[: x.shape[1]] for x in (source, target))
        return self.out(self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True))


class Tagger(nn.Module):
    """An `nn.LSTM` of two layers and both directions, as in PyTorch's tutorial on tagging."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(CODES, 48), nn.Dropout(0.1)
        self.lstm = nn.LSTM(48, 64, 2, dropout=0.1, bidirectional=True, batch_first=True)
        self.out = nn.Linear(128, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the tag of each character."""
        return self.out(self.drop(self.lstm(self.drop(self.embed(words)))[0]))


def table() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (10, 256, 256, 256):
        layers += [nn.Linear(inputs, 256), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(256, 1))


NETWORKS: dict[str, Network] = {
    "BERT": Network(bert, data.chapters, 3000),
    "DistilBERT": Network(distilbert, data.chapters),
    "GPT-2": Network(gpt2, data.next_characters, 3000),
    "T5": Network(t5, lambda: data.continuations(("input_ids", "decoder_input_ids"))),
    "BART": Network(bart, lambda: data.continuations(("input_ids", "decoder_input_ids"))),
    "ViT": Network(vit, data.images, 3000),
    "ResNet": Network(resnet, data.images, 1500),
    "ConvNeXt": Network(convnext, data.images),
    "EfficientNet": Network(efficientnet, data.images),
    "wav2vec2": Network(wav2vec2, data.waves),
    "nn.Transformer": Network(Seq2Seq, lambda: data.continuations(("source", "target")), 3000),
    "nn.LSTM tagger": Network(Tagger, data.word_ends, 1500, 3e-3),
    "table MLP": Network(table, data.measurements, 3000),
}
