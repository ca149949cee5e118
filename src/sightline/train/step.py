"""One update of the weights.

On a CPU, eager torch. On a GPU, bfloat16 by autocast, compiled layers if the run is long enough, and CUDA graphs: an
update is then two or three calls from Python, whatever the number of its kernels. Nothing here waits for the device;
the sums to report stay on it until `Step.take` reads them.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.config import TrainConfig
from sightline.data.batches import Batch
from sightline.data.feed import Update
from sightline.model.kernels.dropout import assign_dropout_seeds
from sightline.model.transformer import Model
from sightline.train.distributed import World, full_tensor
from sightline.train.loss import Loss, linear_cross_entropy
from sightline.train.optimizer import make_optimizers


class Objective(nn.Module):
    """The model followed by its loss: the module to differentiate."""

    def __init__(self, model: Model, smoothing: float, r_drop: float = 0.0, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.smoothing, self.r_drop = model, smoothing, r_drop
        self.loss = torch.compile(linear_cross_entropy) if compiled else linear_cross_entropy

    def forward(self, batch: Batch) -> Loss:
        twice = self.r_drop > 0 and self.training
        vectors = self.model.hidden((batch.twice() if twice else batch).inputs)
        passes = vectors.chunk(2) if twice else (vectors,)
        return self.loss(passes, self.model.classifier, batch.targets, self.smoothing, self.r_drop)


def seed_of(seed: int, step: int, batch: int) -> int:
    """Return the seed of all random choices in one batch of one update. It is a function of the step without state, so
    a resumed run equals an uninterrupted one, and two processes equal one."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + batch * 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


class Sums(NamedTuple):
    """Sums since the last report."""

    smoothed: float
    nll: float
    tokens: float
    gradient_norm: float
    updates: float


class Step:
    """Updates the weights of a model."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        device: torch.device,
        *,
        wrap: Callable[[nn.Module, Iterable[nn.Module]], nn.Module] = lambda module, _: module,
        processes: int = 1,
        bfloat16: bool = False,
        compiled: bool = False,
        graphs: bool = False,
        objective: Callable[..., nn.Module] = Objective,
    ) -> None:
        self.model, self.config, self.device, self.processes, self.bfloat16 = model, config, device, processes, bfloat16
        self.dropout_seeds = assign_dropout_seeds(model, device) if device.type == "cuda" else None
        if compiled:  # unit by unit: the layers of a stack share one compilation
            for unit in model.compile_units():
                unit.compile()
        self.objective = wrap(objective(model, config.smoothing, config.r_drop, compiled), model.compile_units())
        self.no_sync = getattr(self.objective, "no_sync", contextlib.nullcontext)  # for gradients to accumulate
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.rate = torch.zeros((), device=device)
        self.optimizers = make_optimizers(model, config, self.rate)
        self.average = [p.detach().clone() for p in self.parameters] if config.ema else []
        self.average_rate = torch.zeros((), device=device)
        self.scale = torch.zeros((), device=device)
        self.sums = torch.zeros(len(Sums._fields), device=device)
        self.graphs = _Graphs(device) if graphs else None
        self.stream: Callable[[], Any] = self.graphs.on_stream if self.graphs else contextlib.nullcontext
        # If an update is a single batch, its gradients exist only inside one recording. Otherwise every recording adds
        # to gradients at fixed addresses.
        self.single_batch = graphs and processes == config.accumulate == 1
        if graphs and not self.single_batch:
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)

    def __call__(self, update: Update, step: int, rate: float) -> None:
        """Start update number `step` (counted from 1), without waiting for it."""
        self.rate.fill_(rate)
        # Gradients are averaged over processes, and the loss is a mean over the tokens of all processes.
        self.scale.fill_(self.processes / max(update.tokens, 1))
        if self.config.ema:
            self.average_rate.fill_(1 - min(self.config.ema, step / (step + 10)))
        with self.stream():
            for position, (number, batch) in enumerate(update.batches):
                torch.manual_seed(seed_of(self.config.seed, step, number))
                last = position == len(update.batches) - 1
                with contextlib.nullcontext() if last else self.no_sync():
                    self._run(self._update if self.single_batch else self._accumulate, batch)
            self.sums[2] += update.tokens / self.processes
            if not self.single_batch:
                self._run(self._apply, None)

    def _update(self, batch: Batch) -> None:
        self._accumulate(batch)
        self._apply(None)

    def _accumulate(self, batch: Batch) -> None:
        if self.dropout_seeds is not None:
            self.dropout_seeds.random_(-(2**31), 2**31 - 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.objective(batch)
        (loss.smoothed * self.scale).backward()
        self.sums[:2] += torch.stack([loss.smoothed.detach(), loss.nll])

    def _apply(self, _: None) -> None:
        """Clip the gradients and update the weights."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=self.device.type != "mps")
        if self.config.clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.single_batch or self.graphs is None)
        if self.average:
            changes = torch._foreach_sub([p.detach() for p in self.parameters], self.average)
            torch._foreach_mul_(changes, self.average_rate)
            torch._foreach_add_(self.average, changes)
        self.sums[3] += full_tensor(norm)
        self.sums[4] += 1

    def take(self, world: World) -> Sums:
        """Return the sums since the last call, over all processes, and reset them. Waits for the device."""
        with self.stream():
            sums = world.sum(self.sums.clone()).tolist()
            self.sums.zero_()
        return Sums(*sums)._replace(gradient_norm=sums[3] / world.size, updates=sums[4] / world.size)

    @contextlib.contextmanager
    def averaged(self) -> Any:
        """Use the running average of the weights inside the block, if there is one."""
        current = [p.detach().clone() for p in self.parameters] if self.average else []
        _copy(self.parameters, self.average)
        try:
            yield
        finally:
            _copy(self.parameters, current)

    def _run(self, work: Callable[[Any], None], batch: Batch | None) -> None:
        if self.graphs is None:
            work(batch.to(self.device) if batch is not None else None)
        else:
            self.graphs.run(work, batch)


@torch.no_grad()
def _copy(targets: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for parameter, value in zip(targets, values, strict=False):
        parameter.copy_(value)


class _Graphs:
    """CUDA graphs of functions of a batch, recorded at the first call with a shape and replayed afterwards.

    The first call runs eagerly, which also compiles and allocates; recording does not run the work again. Each graph
    reads its batch from a slot of memory at a fixed address, into which the next batch is copied."""

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool: Any = None
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Batch | None]] = {}
        self.device = device

    @contextlib.contextmanager
    def on_stream(self) -> Any:
        """Run the block on a separate stream, ordered with other work on the device."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def run(self, work: Callable[[Any], None], batch: Batch | None) -> None:
        key = (work.__name__, None if batch is None else tuple(x.shape for x in batch.tensors()))
        if key in self.recorded:
            graph, slot = self.recorded[key]
            if batch is not None and slot is not None:
                for target, value in zip(slot.tensors(), batch.tensors(), strict=True):
                    target.copy_(value, non_blocking=True)
            graph.replay()
            return
        slot = None if batch is None else batch.to(self.device)
        work(slot)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            work(slot)
        self.pool = graph.pool()
        self.recorded[key] = graph, slot
