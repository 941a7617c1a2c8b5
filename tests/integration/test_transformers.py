"""Networks of the package `transformers`, of random weights and a few thousand of them, unchanged."""

import pytest
import torch
from torch import nn

import fastdropout as fd
from fastdropout import Moments

hf = pytest.importorskip("transformers")
hf.logging.set_verbosity_error()

WORDS = torch.arange(12).view(2, 6) * 7 % 40 + 3
IMAGE = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()
WAVE = torch.linspace(0, 40, 1600).view(2, 800).sin()
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


class Pooled(nn.Module):
    """A body of convolutions with a classifier as people put it on top."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.drop, self.out = body, nn.Dropout(0.2), nn.Linear(width, 3)

    def forward(self, pixel_values):
        return self.out(self.drop(self.body(pixel_values).pooler_output.flatten(1)))


def bert():
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, num_labels=3, **SMALL))


def distilbert():
    config = hf.DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48, num_labels=3)
    return hf.DistilBertForSequenceClassification(config)


def gpt2():
    config = hf.GPT2Config(
        vocab_size=50, n_positions=8, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return hf.GPT2LMHeadModel(config)


def t5():
    config = hf.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(config)


def bart():
    sizes = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    config = hf.BartConfig(
        vocab_size=50, d_model=32, max_position_embeddings=16, attention_dropout=0.1, **layers
    )
    return hf.BartForConditionalGeneration(config)


def vit():
    config = hf.ViTConfig(image_size=32, patch_size=8, num_labels=3, hidden_dropout_prob=0.1, **SMALL)
    return hf.ViTForImageClassification(config)


def wav2vec2():
    config = hf.Wav2Vec2Config(
        conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 3), num_feat_extract_layers=2, layerdrop=0.0,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, apply_spec_augment=False, num_labels=3,
        classifier_proj_size=16, **SMALL,
    )  # fmt: skip
    return hf.Wav2Vec2ForSequenceClassification(config)


def resnet():
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return Pooled(nn.Sequential(hf.ResNetModel(config)), 16)


def convnext():
    body = hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2))
    return Pooled(nn.Sequential(nn.Dropout2d(0.1), body), 16)


def mobilenet():
    config = hf.MobileNetV2Config(
        num_labels=3, classifier_dropout_prob=0.2, depth_multiplier=0.35, image_size=32
    )
    return hf.MobileNetV2ForImageClassification(config)


NETWORKS = {
    bert: {"input_ids": WORDS},
    distilbert: {"input_ids": WORDS},
    gpt2: {"input_ids": WORDS, "use_cache": False},
    t5: {"input_ids": WORDS, "decoder_input_ids": WORDS[:, :2], "use_cache": False},
    bart: {"input_ids": WORDS, "decoder_input_ids": WORDS[:, :2], "use_cache": False},
    vit: {"pixel_values": IMAGE},
    wav2vec2: {"input_values": WAVE},
    resnet: {"pixel_values": IMAGE},
    convnext: {"pixel_values": IMAGE},
    mobilenet: {"pixel_values": IMAGE},
}


def build(make):
    torch.manual_seed(0)
    model = make()
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms:  # statistics of the data instead of 0 and 1, under which small features die out
        for norm in norms:
            norm.momentum = None
        with torch.no_grad():
            model.train()(**NETWORKS[make])
    model.train()
    for norm in norms:
        norm.eval()
    return model


def logits(model, make):
    out = model(**NETWORKS[make])
    out = out.logits if hasattr(out, "logits") else out
    return out if out.ndim == 2 else out[:, -1, :5]


@pytest.mark.parametrize("make", NETWORKS, ids=lambda f: f.__name__)
def test_deviations_are_those_of_masks(make):
    model = build(make)
    with fd.integrate(train_variance=False) as noise:
        y = logits(model, make)
    assert isinstance(y, Moments)
    with torch.no_grad():
        masks = torch.stack([logits(model, make) for _ in range(300)])
    true = masks.std(0)
    assert 0.85 < noise.std(y).mean() / true.mean() < 1.15
    assert 0.75 < y.std.mean() / true.mean() < 1.35
    assert (y.mean - masks.mean(0)).abs().mean() < 0.25 * true.mean()


@pytest.mark.parametrize("make", NETWORKS, ids=lambda f: f.__name__)
def test_with_hardly_any_dropout_they_are_the_plain_networks(make):
    """Moments flow through every rule, with next to no variance."""
    model = build(make)
    for module in model.modules():
        for name in ("p", "dropout_prob", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 1e-12)
    with fd.integrate():
        y = logits(model, make)
    plain = logits(model.eval(), make)
    assert isinstance(y, Moments)
    torch.testing.assert_close(y.mean, plain, rtol=1e-5, atol=1e-5)
    assert y.std.max() < 1e-3 * plain.abs().max()


def predicted(model, make):
    picked = {"output": "logits"} if hasattr(model, "config") else {}
    y = fd.integrate(model, **picked)(**NETWORKS[make])
    return y if y.ndim == 2 else Moments(y.mean[:, -1, :5], y.var[:, -1, :5])


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [bert, distilbert, gpt2, t5, bart, vit, wav2vec2], ids=lambda f: f.__name__)
def test_evaluation_mode_has_the_noise_of_training_mode(make, kind):
    model = build(make)
    with torch.no_grad():  # of initial weights attention has next to no part in the noise
        for weight in model.parameters():
            weight *= 4 if weight.ndim == 2 and make is not t5 else 1
    if make is vit:
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.1
    model.set_attn_implementation(kind)
    training = predicted(model, make)
    modes = {m: m.training for m in model.eval().modules()}
    evaluated = predicted(model, make)
    assert {m: m.training for m in model.modules()} == modes
    torch.testing.assert_close(evaluated.std, training.std)
    with fd.integrate() as noise:  # does not know the network
        y = logits(model, make)
    assert (noise.std(y) < 0.999 * evaluated.std).any()


def test_the_mode_is_restored_and_layers_are_not_skipped():
    torch.manual_seed(0)
    config = hf.BartConfig(
        vocab_size=50, d_model=32, max_position_embeddings=16, attention_dropout=0.1, encoder_layers=2,
        decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_layerdrop=0.999, decoder_layerdrop=0.999,
    )  # fmt: skip
    model = hf.BartModel(config).eval()
    seen = []
    for module in (model.encoder, model.encoder.layers[0].self_attn, model.encoder.layers[1]):
        module.register_forward_pre_hook(lambda m, _: seen.append((type(m).__name__, m.training)))
    inputs = {"input_ids": WORDS, "decoder_input_ids": WORDS[:, :2], "use_cache": False}
    fd.integrate(model, output="last_hidden_state")(**inputs)
    assert seen == [("BartEncoder", False), ("BartAttention", True), ("BartEncoderLayer", True)]
    model.decoder.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fd.integrate(model)(**inputs)
    with pytest.raises(ZeroDivisionError):
        fd.check(model, **inputs)
    assert not any(m.training for m in model.modules())


def test_check_draws_the_dropout_of_attention_in_evaluation_mode():
    model = build(bert).eval()
    row = fd.check(model, **NETWORKS[bert], masks=300).rows[-1]
    torch.testing.assert_close(row.traced, 1.0, rtol=0.12, atol=0)
    assert not any(m.training for m in model.modules())
