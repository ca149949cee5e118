"""Beyond raw attention: readings of a trace that take more of the model into account.

Attention is not by itself an explanation: a head may look at a token whose value it then ignores, and the residual
stream carries what no head looked at. Each of these adds a piece of what raw attention leaves out.
"""

import threading
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sightline.errors import InputError, TraceError
from sightline.model.transformer import Embedding, EncoderOnly, Model, MultiHeadAttention, Stack
from sightline.trace.record import Trace, Traced
from sightline.trace.what_if import require_model

__all__ = ["Attribution", "gradient_x_input", "logit_lens", "rollout", "value_weighted"]


def rollout(trace: Trace, stack: str) -> dict[str, Traced]:
    """Attention rollout (Abnar and Zuidema, 2020, arXiv:2005.00928): how much of each input token has reached each
    position after each layer, if heads count alike and half of every vector comes through the residual.

    For an encoder: {"source": ...}. For a decoder: its own tokens ("target") and, through encoder-decoder attention and
    the encoder's own rollout, the "source". The shares of one position add up to 1."""
    traced = trace[f"{stack}.layers.0.self_attention.probabilities"]
    first = traced.values
    if first.shape[-1] != first.shape[-2]:
        raise TraceError("rollout needs a full pass; this trace is of single steps through a cache.")
    own = torch.eye(first.shape[-1], device=first.device).expand(*first.shape[:-3], -1, -1)
    side = "source" if stack == "encoder" else "target"
    shares: dict[str, Tensor] = {side: own}
    layers: dict[str, list[Tensor]] = {}
    if f"{stack}.layers.0.cross_attention.probabilities" in trace:
        encoded = rollout(trace, "encoder")["source"].values[-1]
        shares["source"] = torch.zeros(*own.shape[:-1], encoded.shape[-1], device=own.device)
    layer = 0
    while f"{stack}.layers.{layer}.self_attention.probabilities" in trace:
        looks = trace[f"{stack}.layers.{layer}.self_attention.probabilities"].values.mean(-3)
        shares = {name: (share + looks @ share) / 2 for name, share in shares.items()}
        if f"{stack}.layers.{layer}.cross_attention.probabilities" in trace:
            looks = trace[f"{stack}.layers.{layer}.cross_attention.probabilities"].values.mean(-3)
            shares["source"] = (shares["source"] + looks @ encoded) / 2
            shares["target"] = shares["target"] / 2
        for name, share in shares.items():
            layers.setdefault(name, []).append(share)
        layer += 1
    batch = ("batch",) if first.dim() == 4 else ()
    axes = ("layer", *batch, "query", "key")
    names = {name: f"{stack}.rollout.{name}" for name in layers}
    return {name: Traced(names[name], axes, torch.stack(found), traced.labels) for name, found in layers.items()}


def value_weighted(trace: Trace, model: Model, path: str) -> Traced:
    """How much each key really gave (Kobayashi et al., 2020, arXiv:2004.10102): the length of probability times value
    times the head's part of W^O, by head, query and key."""
    module = dict(model.named_modules()).get(path)
    if not isinstance(module, MultiHeadAttention):
        raise TraceError(f"{path!r} is not an attention module.")
    probabilities, v = trace[f"{path}.probabilities"], trace[f"{path}.v"].values.float()
    w_o = module.output.weight.detach().float().unflatten(1, (module.heads, -1))  # type: ignore[no-untyped-call]
    given = torch.einsum("...hkd,mhd->...hkm", v, w_o).norm(dim=-1)
    values = probabilities.values * given[..., None, :]
    return Traced(f"{path}.value_weighted", probabilities.axes, values, probabilities.labels)


@torch.no_grad()
def logit_lens(trace: Trace, model: Model, stack: str) -> Traced:
    """What the model would say if it stopped early (nostalgebraist, 2020): the vector of each position after the
    embedding (0) and after each layer (1, 2, ...), put through the stack's last norm and the classifier. An encoder
    beside a decoder has no classifier of its own; its vectors are compared with the source embeddings."""
    module = dict(model.named_modules()).get(stack)
    if not isinstance(module, Stack):
        raise TraceError(f"{stack!r} is not a stack; choose encoder or decoder.")
    outputs = [trace[f"{stack}.embedding.output"]]
    outputs += [trace[f"{stack}.layers.{i}.feed_forward_residual.output"] for i in range(len(module.layers))]
    # .forward goes past the hooks: what is computed here is not part of the trace.
    vectors = module.norm.forward(torch.stack([output.values for output in outputs]))
    if isinstance(model, EncoderOnly):
        vectors = model.head_norm.forward(model.head_activation(model.head.forward(vectors)))
    if stack == "encoder" and not isinstance(model, EncoderOnly):
        logits = F.linear(vectors, module.embedding.tokens.weight)
    else:
        logits = model.classifier.forward(vectors)
    axes = ("layer", *outputs[0].axes[:-1], "vocabulary")
    return Traced(f"{stack}.logit_lens", axes, logits, outputs[0].labels)


class Attribution(NamedTuple):
    """What each input token contributed to one score."""

    score: float
    """The log-probability that was asked about."""
    tokens: dict[str, Float[Tensor, " length"]]
    """By stack ("encoder", "decoder"): gradient times input, summed over the channels of each token."""


def gradient_x_input(
    model: Model, inputs: tuple[Any, ...], position: int, token: int, sentence: int = 0
) -> Attribution:
    """Which input tokens would move the log-probability of `token` after `position`: the gradient with respect to each
    embedded token, times that token (Simonyan et al., 2013, arXiv:1312.6034). `inputs` are what the model is called
    with. Unlike attention weights it takes the whole model into account, but only for a small change of the input."""
    require_model(model)
    if model.training:
        raise TraceError("a model in training mode drops units at random; call model.eval() first.")
    thread = threading.get_ident()
    leaves: dict[str, Tensor] = {}
    handles: list[RemovableHandle] = []

    def leaf(path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None
            leaves[path] = output.detach().requires_grad_()
            return leaves[path]

        return hook

    try:
        for path, module in model.named_modules():
            if isinstance(module, Embedding):
                handles.append(module.register_forward_hook(leaf(path.partition(".")[0])))
        with torch.inference_mode(False), torch.enable_grad():
            logits = model(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
            sentences, length, vocabulary = logits.shape
            if not (0 <= sentence < sentences and -length <= position < length and 0 <= token < vocabulary):
                place = f"sentence {sentence}, position {position}, token {token}"
                raise InputError(f"there is no {place} in logits of shape {tuple(logits.shape)}.")
            score = logits[sentence, position].log_softmax(-1)[token]
            gradients = torch.autograd.grad(score, list(leaves.values()), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    tokens = {}
    for (stack, x), gradient in zip(leaves.items(), gradients, strict=True):
        tokens[stack] = (x * gradient).sum(-1)[sentence].detach() if gradient is not None else torch.zeros(x.shape[1])
    return Attribution(score.item(), tokens)
