"""Choose the batch size in tokens by the memory of the device."""

import gc

import torch

from sightline.config import Config
from sightline.data.batches import Batch
from sightline.data.feed import Place, Update
from sightline.model.mask import PackedRows
from sightline.model.protocol import Inputs
from sightline.model.transformer import build
from sightline.train.step import Step

ROW_LENGTH = 64
MAX_BATCH_TOKENS = 131_072
MEMORY_SHARE = 0.8
"""Share of the memory to use; the rest is for differences between steps."""


def find_batch_tokens(config: Config, device: torch.device) -> int:
    """Measure two small steps on random text and extrapolate linearly to the available memory. A CPU gets the default
    of 4,096 tokens, as larger batches only use more memory there."""
    if device.type != "cuda":
        return 4096
    small, large = 8192, 16_384
    peaks = [_peak(config, device, tokens) for tokens in (small, large)]
    slope = max((peaks[1] - peaks[0]) / (large - small), 1.0)
    free = MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory - peaks[0]
    rows = int(small + free / slope) // ROW_LENGTH
    return min(MAX_BATCH_TOKENS, max(1, rows) * ROW_LENGTH)


def _peak(config: Config, device: torch.device, tokens: int) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    with torch.random.fork_rng(devices=[device]):
        model = build(config.model).to(device).train()
        step = Step(model, config.train, device, bfloat16=torch.cuda.is_bf16_supported())
        ids = torch.full((tokens // ROW_LENGTH, ROW_LENGTH), 5)
        rows = PackedRows(torch.zeros_like(ids), torch.arange(ROW_LENGTH).expand_as(ids))
        batch = Batch(Inputs(ids, ids, rows, rows), ids, tokens)  # a model ignores the side that it does not have
        for number in (1, 2):
            step(Update([(0, batch)], tokens, 2 * tokens, Place(), 0.0), number, 0.0)
    return torch.cuda.max_memory_allocated(device)
