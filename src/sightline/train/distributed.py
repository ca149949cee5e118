"""Distributed training with `torchrun`. No other file uses ranks.

Every process reads the same stream of batches and takes its share. By default each process has a copy of the model
(DDP). With sharding (FSDP2), each has a part of every weight, gradient and optimizer state, and gathers the parameters
of a unit just before it runs.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sightline.errors import InputError


def is_main() -> bool:
    """Return whether this is the main process, which writes files and reports."""
    return os.environ.get("RANK", "0") == "0"


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole tensor of a sharded one. All processes must call it."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor, equal in all processes, in the way `like` is sharded."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or hasattr(value, "device_mesh"):
        return value.to(like.device)
    from torch.distributed.tensor import DTensor, Replicate  # noqa: PLC0415 - slow to import

    copies = DTensor.from_local(value.to(like.device), mesh, [Replicate()], run_check=False)
    return copies.redistribute(placements=like.placements)  # type: ignore[attr-defined]


def local_tensor(value: Tensor) -> Tensor:
    """Return this process's shard as a plain tensor in the same memory."""
    part = getattr(value, "to_local", None)
    return value if part is None else part()


class World:
    """The processes that train together, as seen by one of them. Without `torchrun` there is one process."""

    def __init__(self, device: str = "auto", *, shard: bool = False) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.main = is_main()
        self.device = _device(device)
        self.sharded = shard and self.size > 1
        if self.size > 1:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            if not dist.is_initialized():
                dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def wrap(self, objective: nn.Module, units: Iterable[nn.Module]) -> nn.Module:
        """Return the module with gradients averaged over all processes. `units`: the parts to shard one by one."""
        if self.size == 1:
            return objective
        if not self.sharded:
            ids = [self.device.index] if self.device.type == "cuda" else None
            return nn.parallel.DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - slow to import
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

        mesh = init_device_mesh(self.device.type, (self.size,))
        for unit in [*units, objective]:
            fully_shard(unit, mesh=mesh)
        return objective

    def save_parts(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Write the shards of each process as safetensors. All processes must call it."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: PLC0415 - slow to import
        from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))

    def reshard(self, objective: nn.Module) -> None:
        """Free the weights gathered for a pass without an update: they would be stale in the next pass."""
        if self.sharded:
            for module in objective.modules():
                reshard: Any = getattr(module, "reshard", None)
                if reshard is not None:
                    reshard()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process. All processes must call it."""
        if self.size == 1:
            return flag
        found = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the value of the main process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device)
        return box[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError.of(
            "device", name, f"is not available: {name!r} ({str(error).splitlines()[0]}). Choose cpu, cuda, mps or auto."
        ) from None
    return device
