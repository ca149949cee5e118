"""Adam (§5.3), AdamW and Muon.

Adam scales the mean gradient of each weight by its magnitude. Muon (Jordan et al., 2024,
https://kellerjordan.github.io/posts/muon/) updates a whole matrix by the orthogonal matrix nearest to its mean
gradient, so that all directions get the same step. Parameters that are not matrices between layers (embeddings, norms,
biases) are updated by AdamW even then.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sightline.config import TrainConfig
from sightline.train.distributed import full_tensor, local_tensor, shard_like


def make_optimizers(model: nn.Module, config: TrainConfig, rate: Tensor) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model. `rate` is the learning rate, a tensor that the training step writes into."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    excluded = ("embedding", "classifier")
    matrices = {name: w for name, w in named.items() if w.dim() == 2 and not any(part in name for part in excluded)}
    others = [w for name, w in named.items() if name not in matrices]
    adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    options: dict[str, Any] = {"lr": rate, "betas": config.betas, "eps": config.epsilon, "fused": True}
    options["capturable"] = rate.is_cuda
    rest = {"params": others, "weight_decay": 0.0}
    if config.optimizer == "muon":
        return [Muon(matrices, rate, weight_decay=config.weight_decay), adam([rest], **options)]
    return [adam([{"params": list(matrices.values()), "weight_decay": config.weight_decay}, rest], **options)]


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum. Matrices of one shape are processed together, as batched products."""

    def __init__(self, named: Mapping[str, Tensor], rate: Tensor, *, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(named.values()), {"lr": rate, "momentum": momentum, "weight_decay": weight_decay})
        parts = {"query_key_value": 3, "key_value": 2}  # stacked matrices, each updated on its own
        self.parts = {weight: parts.get(name.split(".")[-2], 1) for name, weight in named.items()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update the weights without waiting for the device."""
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if w not in self.state:
                    self.state[w] = {"momentum": torch.zeros_like(w)}
            means = [self.state[w]["momentum"] for w in weights]
            gradients = [w.grad for w in weights]
            torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
            nesterov = torch._foreach_lerp(gradients, means, group["momentum"])
            pieces: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight, mean in zip(weights, nesterov, strict=True):
                for piece in full_tensor(mean).chunk(self.parts[weight]):
                    pieces.setdefault(piece.shape, []).append((weight, piece))
            updates: dict[Tensor, list[Tensor]] = {w: [] for w in weights}
            for shape, group_of_shape in pieces.items():
                moves = orthogonalize(torch.stack([mean for _, mean in group_of_shape]))
                # Scale the entries to the size of Adam's updates (Liu et al., 2025, arXiv:2502.16982).
                moves = moves * (-0.2 * max(shape) ** 0.5 * group["lr"])
                for (weight, _), move in zip(group_of_shape, moves.unbind(), strict=True):
                    updates[weight].append(move)
            shards = [local_tensor(w) for w in weights]
            if group["weight_decay"]:
                torch._foreach_mul_(shards, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(
                shards, [local_tensor(shard_like(torch.cat(updates[w]).to(w.dtype), w)) for w in weights]
            )


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return an orthogonal matrix near each matrix of a batch, by Newton-Schulz iterations: all singular values become
    about 1. The coefficients are Jordan's and need five steps."""
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
    """Return the state of the optimizers by name: `<parameter>.<entry>`."""
    tensors = {}
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            tensors.update({f"{names[weight]}.{entry}": value for entry, value in state.items()})
    return tensors


def load_optimizer_state(
    optimizers: Iterable[torch.optim.Optimizer],
    names: Mapping[Tensor, str],
    state: Mapping[str, Tensor],
) -> None:
    """Load the state that `optimizer_state` returned."""
    parameters = {name: parameter for parameter, name in names.items()}
    owners = {w: optimizer for optimizer in optimizers for group in optimizer.param_groups for w in group["params"]}
    for name, value in state.items():
        parameter, _, entry = name.rpartition(".")
        weight = parameters[parameter]
        part = shard_like(value, weight) if value.dim() else value
        # Adam's step counter is on the CPU, unless the update is recorded on a GPU.
        owners[weight].state[weight][entry] = (part.to(weight.device) if weight.is_cuda else part).clone()
