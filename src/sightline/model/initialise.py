"""The weights a model begins with."""

import torch
from torch import nn

__all__ = ["initialise"]


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """As the paper's own code begins: Glorot-uniform matrices (W^Q, W^K and W^V each for itself), no biases, and
    embeddings of deviation 1/√d_model, which the scale of §3.4 brings to 1."""
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
