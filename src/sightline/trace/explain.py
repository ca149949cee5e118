"""Explanations beyond raw attention: rollout, value-weighted attention, logit lens, gradient times input.

Attention weights alone do not explain an output: a head may attend to a token and ignore its value, and the residual
stream carries information that no head attends to. Each of these methods takes more of the model into account.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError, TraceError
from sightline.model.hooks import hooks
from sightline.model.protocol import Inputs
from sightline.model.transformer import Embedding, Model, MultiHeadAttention, Stack
from sightline.trace.trace import Trace, Traced
from sightline.trace.what_if import require_model


def rollout(trace: Trace, stack: str) -> dict[str, Traced]:
    """Compute attention rollout (Abnar and Zuidema, 2020, arXiv:2005.00928): the share of each input token in each
    position after each layer, if all heads count equally and half of every vector comes through the residual.

    For an encoder: {"source": ...}. For a decoder: its own tokens ("target") and, through encoder-decoder attention and
    the rollout of the encoder, the "source". The shares of one position sum to 1."""
    _, axes, first, labels = trace[f"{stack}.layers.0.self_attention.probabilities"]
    if first.shape[-1] != first.shape[-2]:
        raise TraceError("Rollout needs the trace of a full pass. This one has single steps through a cache.")
    own = torch.eye(first.shape[-1], device=first.device).expand(*first.shape[:-3], -1, -1)
    side = "source" if stack == "encoder" else "target"
    shares: dict[str, Tensor] = {side: own}
    layers: dict[str, list[Tensor]] = {}
    if f"{stack}.layers.0.cross_attention.probabilities" in trace:
        encoded = rollout(trace, "encoder")["source"].values[-1]
        shares["source"] = torch.zeros(*own.shape[:-1], encoded.shape[-1], device=own.device)
    layer = 0
    while f"{stack}.layers.{layer}.self_attention.probabilities" in trace:
        weights = trace[f"{stack}.layers.{layer}.self_attention.probabilities"].values.mean(-3)
        shares = {name: (share + weights @ share) / 2 for name, share in shares.items()}
        if f"{stack}.layers.{layer}.cross_attention.probabilities" in trace:
            weights = trace[f"{stack}.layers.{layer}.cross_attention.probabilities"].values.mean(-3)
            shares["source"] = (shares["source"] + weights @ encoded) / 2
            shares["target"] = shares["target"] / 2
        for name, share in shares.items():
            layers.setdefault(name, []).append(share)
        layer += 1
    axes = ("layer", *(axis for axis in axes if axis != "head"))
    return {side: Traced(f"{stack}.rollout.{side}", axes, torch.stack(some), labels) for side, some in layers.items()}


def value_weighted(trace: Trace, model: Model, path: str) -> Traced:
    """Compute value-weighted attention (Kobayashi et al., 2020, arXiv:2004.10102): the norm of probability times value
    times the head's part of W^O, by head, query and key."""
    module = dict(model.named_modules()).get(path)
    if not isinstance(module, MultiHeadAttention):
        raise TraceError.of("path", path, f"= {path!r} is not an attention module.")
    probabilities, v = trace[f"{path}.probabilities"], trace[f"{path}.v"].values.float()
    w_o = module.output.weight.detach().float().unflatten(1, (module.heads, -1))  # type: ignore[no-untyped-call]
    given = torch.einsum("...hkd,mhd->...hkm", v, w_o).norm(dim=-1)
    values = probabilities.values * given[..., None, :]
    return Traced(f"{path}.value_weighted", probabilities.axes, values, probabilities.labels)


@torch.no_grad()
def logit_lens(trace: Trace, model: Model, stack: str, position: int | None = None) -> Traced:
    """Compute the logit lens (nostalgebraist, 2020): the scores of the vectors after the embedding (0) and after each
    layer (1, 2, ...), by the stack's final norm and the classifier. The encoder of an encoder-decoder model has no
    classifier; its vectors are multiplied with the source embeddings. `position`: only this one."""
    module = dict(model.named_modules()).get(stack)
    if not isinstance(module, Stack):
        raise TraceError.of("stack", stack, f"= {stack!r} is not a stack of layers.")
    outputs = [trace[f"{stack}.embedding.output"]]
    outputs += [trace[f"{stack}.layers.{i}.feed_forward_residual.output"] for i in range(len(module.layers))]
    # .forward calls no hooks: the lens is not part of a trace.
    vectors = torch.stack([output.values for output in outputs])
    labels = outputs[0].labels
    if position is not None:
        vectors, labels = vectors[..., position : position + 1, :], {}
    vectors = module.norm.forward(vectors)
    names, modules = zip(*model.named_children(), strict=True)
    above = modules[names.index(stack) + 1 :]  # up to the classifier
    if any(isinstance(other, Stack) for other in above):
        logits = F.linear(vectors, module.embedding.tokens.weight)
    else:
        for other in above:
            vectors = other.forward(vectors)
        logits = vectors
    axes = ("layer", *outputs[0].axes[:-1], "vocabulary")
    return Traced(f"{stack}.logit_lens", axes, logits, labels)


class Attribution(NamedTuple):
    """The contribution of each input token to one score."""

    score: float
    """The log-probability."""
    tokens: dict[str, Float[Tensor, " length"]]
    """By stack ("encoder", "decoder"): gradient times input, summed over the channels of each token."""


def gradient_x_input(model: Model, inputs: Inputs, position: int, token: int, sentence: int = 0) -> Attribution:
    """Compute gradient times input (Simonyan et al., 2013, arXiv:1312.6034): the gradient of the log-probability of
    `token` after `position` with respect to each embedded token, times that token. Unlike attention weights it takes
    the whole model into account, but only for a small change of the input."""
    require_model(model)
    if model.training:
        raise TraceError("The model is in training mode and drops random units. Call `model.eval()` first.")
    leaves: dict[str, Tensor] = {}

    def leaf(path: str, _: Any, output: Tensor) -> Tensor:
        leaves[path] = output.detach().requires_grad_()
        return leaves[path]

    embeddings = [(path, module) for path, module in model.named_modules() if isinstance(module, Embedding)]
    replaced = [(module, partial(leaf, path.partition(".")[0])) for path, module in embeddings]
    with hooks(after=replaced), torch.inference_mode(False), torch.enable_grad():
        inputs = Inputs._make(x.clone() if isinstance(x, Tensor) else x for x in inputs)
        logits = model.classifier(model.hidden(inputs))
        sizes = {"sentence": (sentence, 0), "position": (position, -logits.shape[1]), "token": (token, 0)}
        for (option, (value, least)), size in zip(sizes.items(), logits.shape, strict=True):
            if not least <= value < size:
                raise InputError.of(option, value, f"must be less than {size}, got {value}.")
        score = logits[sentence, position].log_softmax(-1)[token]
        gradients = torch.autograd.grad(score, list(leaves.values()), allow_unused=True)
    tokens = {}
    for (stack, x), gradient in zip(leaves.items(), gradients, strict=True):
        tokens[stack] = (x * gradient).sum(-1)[sentence].detach() if gradient is not None else torch.zeros(x.shape[1])
    return Attribution(score.item(), tokens)
