"""The initial weights of a model, and the table of sinusoids."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import PositionsConfig


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Initialise as the paper's code does: Glorot-uniform matrices (W^Q, W^K and W^V separately), zero biases, and
    embeddings with standard deviation 1/√d_model, which the scale of §3.4 makes 1."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            stacked = {"query_key_value": 3, "key_value": 2}.get(name.rpartition(".")[2], 1)
            for matrix in module.weight.chunk(stacked):
                nn.init.xavier_uniform_(matrix)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, weight in model.named_parameters():
        if "embedding." in name and weight.dim() == 2:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def sinusoids(config: PositionsConfig, width: int) -> Float[Tensor, "max_length width"]:
    """Return sin(p·w_i) and cos(p·w_i) for each position p and rate w_i (§3.5). Computed in double precision, because
    in single precision the angle has an error of 3e-5 at p = 500."""
    if config.frequencies == "paper":  # w_i = 10000^(-2i/d); an odd width has one sine more than cosines
        rates = config.max_timescale ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    else:  # tensor2tensor: a geometric series that includes both ends; an odd width ends in a zero
        step = math.log(config.max_timescale / config.min_timescale) / max(width // 2 - 1, 1)
        rates = config.min_timescale * torch.exp(-step * torch.arange(width // 2, dtype=torch.float64))
    positions = torch.arange(config.start, config.start + config.max_length, dtype=torch.float64)
    angles = torch.outer(positions, rates)
    table = torch.stack([angles.sin(), angles.cos()], dim=2 if config.kind == "interleaved" else 1).flatten(1)
    return F.pad(table, (0, width - table.shape[1])).float()  # one channel less or more if the width is odd
