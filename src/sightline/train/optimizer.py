"""Adam (§5.3), AdamW, and Muon.

Adam moves every weight by its own gradient's mean over its own gradient's size. Muon (Jordan et al., 2024,
https://kellerjordan.github.io/posts/muon/) sees that most weights are matrices: it moves a whole matrix by the
orthogonal matrix nearest to its mean gradient, so that no direction is neglected. What is not a matrix between layers
(embeddings, norms, biases) is moved by Adam there, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sightline.config import TrainConfig
from sightline.train.distributed import full_tensor, local_tensor, shard_like

__all__ = ["Muon", "load_optimizer_state", "make_optimizers", "optimizer_state", "orthogonalize"]

Optimizers = list[torch.optim.Optimizer]


def make_optimizers(model: nn.Module, config: TrainConfig, rate: Tensor) -> Optimizers:
    """The optimizers of a model; `rate` is the learning rate, a tensor that whoever trains writes into."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    outer = ("embedding", "classifier")
    matrices = {name: w for name, w in named.items() if w.dim() == 2 and not any(part in name for part in outer)}
    rest = [w for name, w in named.items() if name not in matrices]
    adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    options: dict[str, Any] = {"lr": rate, "betas": config.betas, "eps": config.epsilon, "fused": True}
    options["capturable"] = rate.is_cuda
    if config.optimizer == "muon":
        muon = Muon(matrices, rate, weight_decay=config.weight_decay)
        return [muon, adam([{"params": rest, "weight_decay": 0.0}], **options)]
    groups = [
        {"params": list(matrices.values()), "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return [adam(groups, **options)]


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal. Matrices of one shape are worked on together, as one batch of products."""

    def __init__(self, named: Mapping[str, Tensor], rate: Tensor, *, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(named.values()), {"lr": rate, "momentum": momentum, "weight_decay": weight_decay})
        parts = {"query_key_value": 3, "key_value": 2}  # these are stacked; each matrix in them is one by itself
        self.parts = {weight: parts.get(name.split(".")[-2], 1) for name, weight in named.items()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One update. Nothing in it waits for the device."""
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if w not in self.state:
                    self.state[w] = {"momentum": torch.zeros_like(w)}
            means = [self.state[w]["momentum"] for w in weights]
            gradients = [w.grad for w in weights]
            torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, means, group["momentum"])  # Nesterov's
            pieces: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight, mean in zip(weights, ahead, strict=True):
                for piece in full_tensor(mean).chunk(self.parts[weight]):
                    pieces.setdefault(piece.shape, []).append((weight, piece))
            found: dict[Tensor, list[Tensor]] = {w: [] for w in weights}
            for shape, together in pieces.items():
                moves = orthogonalize(torch.stack([mean for _, mean in together]))
                # Its entries then have the size of Adam's moves (Liu et al., 2025, arXiv:2502.16982).
                moves = moves * (-0.2 * max(shape) ** 0.5 * group["lr"])
                for (weight, _), move in zip(together, moves.unbind(), strict=True):
                    found[weight].append(move)
            into = [local_tensor(w) for w in weights]
            if group["weight_decay"]:
                torch._foreach_mul_(into, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(into, [local_tensor(shard_like(torch.cat(found[w]).to(w.dtype), w)) for w in weights])


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """The orthogonal matrix near each of a batch of matrices, by Newton-Schulz iterations: singular values all come to
    about 1. The coefficients are Jordan's; they need five steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def optimizer_state(optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """All that the optimizers remember, by name: `<parameter>.<what>`."""
    found = {}
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            found.update({f"{names[weight]}.{what}": value for what, value in state.items()})
    return found


def load_optimizer_state(
    optimizers: Iterable[torch.optim.Optimizer],
    names: Mapping[Tensor, str],
    state: Mapping[str, Tensor],
) -> None:
    """Let the optimizers remember what `optimizer_state` told."""
    known = {name: parameter for parameter, name in names.items()}
    kept: dict[Tensor, dict[str, Tensor]] = {}
    for name, value in state.items():
        parameter, _, what = name.rpartition(".")
        weight = known[parameter]
        # Adam counts its steps on the CPU, unless the step is recorded on a GPU.
        part = value if value.dim() == 0 and not weight.is_cuda else shard_like(value, weight) if value.dim() else value
        kept.setdefault(weight, {})[what] = (part.to(weight.device) if weight.is_cuda else part).clone()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight in kept:
                    optimizer.state[weight] = kept[weight]
