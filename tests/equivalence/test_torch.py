"""Equality with torch.nn.Transformer."""

import warnings

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sightline.config import ModelConfig
from sightline.model.transformer import EncoderDecoder, build
from support import difference

torch.backends.mha.set_fastpath_enabled(False)  # a prototype that warns at each call


def weights_of(reference: nn.Transformer, model: EncoderDecoder) -> None:
    """Copy the reference's weights into ours."""
    for ours, theirs in ((model.encoder, reference.encoder), (model.decoder, reference.decoder)):
        for layer, other in zip(ours.layers, theirs.layers, strict=True):
            layer.self_attention.query_key_value.weight.copy_(other.self_attn.in_proj_weight)
            layer.self_attention.query_key_value.bias.copy_(other.self_attn.in_proj_bias)
            layer.self_attention.output.load_state_dict(other.self_attn.out_proj.state_dict())
            norms = [layer.self_attention_residual, layer.feed_forward_residual]
            if ours is model.decoder:
                width = model.config.d_model
                cross, attention = layer.cross_attention, other.multihead_attn
                cross.query.weight.copy_(attention.in_proj_weight[:width])
                cross.query.bias.copy_(attention.in_proj_bias[:width])
                cross.key_value.weight.copy_(attention.in_proj_weight[width:])
                cross.key_value.bias.copy_(attention.in_proj_bias[width:])
                cross.output.load_state_dict(attention.out_proj.state_dict())
                norms.insert(1, layer.cross_attention_residual)
            layer.feed_forward.inner.load_state_dict(other.linear1.state_dict())
            layer.feed_forward.outer.load_state_dict(other.linear2.state_dict())
            for number, residual in enumerate(norms, start=1):
                residual.norm.load_state_dict(getattr(other, f"norm{number}").state_dict())
        ours.norm.load_state_dict(theirs.norm.state_dict())


@settings(max_examples=25)
@given(
    pre=st.booleans(),
    heads=st.sampled_from([1, 2, 3, 4]),
    d_k=st.integers(3, 9),
    d_ff=st.integers(1, 50),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    activation=st.sampled_from(["relu", "gelu"]),
    lengths=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    epsilon=st.sampled_from([1e-5, 0.1]),
    seed=st.integers(0, 10**6),
)
@torch.no_grad()
def test_equal_to_torch(pre, heads, d_k, d_ff, layers, activation, lengths, epsilon, seed):
    torch.manual_seed(seed)
    d_model = heads * d_k
    with warnings.catch_warnings(action="ignore"):  # about unused fast paths
        reference = nn.Transformer(
            d_model,
            heads,
            layers[0],
            layers[1],
            d_ff,
            activation=activation,
            norm_first=pre,
            batch_first=True,
            layer_norm_eps=epsilon,
        ).eval()
    for parameter in reference.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    model = build(
        ModelConfig(
            vocab_size=17,
            d_model=d_model,
            encoder={"layers": layers[0], "heads": heads, "d_ff": d_ff},
            decoder={"layers": layers[1], "heads": heads, "d_ff": d_ff},
            activation=activation,
            norm="pre" if pre else "post",
            norm_epsilon=epsilon,
            final_norm=True,  # torch has one on top of a post-norm stack too; the paper has none
            attention_bias=True,
        )
    ).eval()
    weights_of(reference, model)
    source, target = torch.randint(0, 17, (3, lengths[0])), torch.randint(0, 17, (3, lengths[1]))
    layout = torch.rand(3, lengths[0]) < 0.7
    layout[:, 0] = True

    expected = reference(
        model.encoder.embedding(source, torch.arange(lengths[0])[None]),
        model.decoder.embedding(target, torch.arange(lengths[1])[None]),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(lengths[1]) < 0,  # True means masked there
        src_key_padding_mask=~layout,
        memory_key_padding_mask=~layout,
        tgt_is_causal=True,
    )
    assert difference(model(source, target, layout), model.classifier(expected)) <= 1e-5
