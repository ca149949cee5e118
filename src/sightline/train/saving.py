"""The files that a run leaves: the model, validated states to average, and checkpoints to resume from."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save
from torch import Tensor

from sightline.config import Config
from sightline.errors import CheckpointError
from sightline.files import write_files
from sightline.model.transformer import Model
from sightline.runs import CHECKPOINTS, STATES, TESTED
from sightline.train.distributed import World, full_tensor, shard_like
from sightline.train.optimizer import load_optimizer_state, optimizer_state
from sightline.train.state import RunState, last_state, load_state, new_state
from sightline.train.step import Step


@dataclass
class Checkpoints:
    """Saves and loads a run. Only the main process writes."""

    model: Model
    step: Step
    config: Config
    folder: Path
    world: World
    save_model: Callable[[Mapping[str, Tensor], Path], None]
    """Writes weights as a model folder."""

    def __post_init__(self) -> None:
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights to keep: their running average, if there is one."""
        with self.step.averaged():
            return {name: full_tensor(p.detach()).to("cpu", copy=True) for p, name in self.names.items()}

    def write_model(self, folder: Path) -> None:
        """Write the weights as a model; that of the run is in its own folder."""
        weights = self.weights()
        if self.world.main:
            self.save_model(weights, folder)

    def keep_validated(self, run: RunState) -> None:
        """Write the weights as a separate model, with `train.keep_tested`."""
        if self.config.train.keep_tested:
            self.write_model(self.folder / TESTED / f"step-{run.step:08}")

    def keep_for_average(self, run: RunState, value: float) -> None:
        """Keep the validated state if it belongs to those to average, and delete the state it replaces."""
        count, of = self.config.train.average, self.config.train.average_of
        if not count:
            return
        run.averaged.append((value, run.step))
        ranked = sorted(run.averaged, key=lambda state: state if of == "best" else state[1], reverse=True)
        run.averaged = sorted(ranked[:count], key=lambda state: state[1])
        weights = self.weights()
        if not self.world.main:
            return
        names = {f"step-{step:08}.safetensors" for _, step in run.averaged}
        own = f"step-{run.step:08}.safetensors"
        if own in names:
            write_files(self.folder / STATES, {own: save(weights)})
        for path in (self.folder / STATES).glob("*.safetensors"):
            if path.name not in names and path.name <= own:
                path.unlink(missing_ok=True)

    def mean_of_states(self, run: RunState) -> dict[str, Tensor] | None:
        """Return the mean of the kept states, computed in double precision."""
        if len(run.averaged) < 2:
            return None
        total: dict[str, Tensor] = {}
        for _, step in run.averaged:
            for name, weight in load_file(self.folder / STATES / f"step-{step:08}.safetensors").items():
                total[name] = total.get(name, 0) + weight.double()
        return {name: (weight / len(run.averaged)).float() for name, weight in total.items()}

    def save(self, run: RunState) -> Path:
        """Write a checkpoint."""
        state = {f"weights.{name}": p.detach() for p, name in self.names.items()}
        state |= {f"optimizer.{name}": v for name, v in optimizer_state(self.step.optimizers, self.names).items()}
        state |= {f"average.{name}": v for name, v in zip(self.names.values(), self.step.average, strict=False)}
        state["sums"] = self.world.sum(self.step.sums.clone())
        folder = self.folder / CHECKPOINTS / f"step-{run.step:08}"
        with new_state(folder, asdict(run)) if self.world.main else contextlib.nullcontext() as draft:
            if self.world.sharded:
                self.world.save_parts(state, self.world.broadcast(draft))
            elif draft:
                tensors = {name: value.contiguous().cpu() for name, value in state.items()}
                write_files(draft, {"state.safetensors": save(tensors)})
        self.world.barrier()
        return folder

    def load(self) -> RunState:
        """Load the last checkpoint."""
        path = last_state(self.folder / CHECKPOINTS)
        if path is None:  # the run was killed before its first checkpoint
            return RunState()
        parameters = {name: parameter for parameter, name in self.names.items()}

        def like(name: str) -> Tensor | None:
            kind, _, rest = name.partition(".")
            return parameters.get(rest.rpartition(".")[0] if kind == "optimizer" else rest)

        state, about = load_state(path, like)
        missing = {f"weights.{name}" for name in parameters} ^ {name for name in state if name.startswith("weights.")}
        if missing:
            raise CheckpointError(f"{path}: {min(missing)!r} does not match the model of the run.", value=path)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(shard_like(state[f"weights.{name}"], parameter))
            for name, mean in zip(parameters, self.step.average, strict=False):
                mean.copy_(shard_like(state[f"average.{name}"], mean))
            if self.world.main:  # the sum over all processes, counted once
                self.step.sums.copy_(state["sums"])
        moments = {name.removeprefix("optimizer."): v for name, v in state.items() if name.startswith("optimizer.")}
        load_optimizer_state(self.step.optimizers, self.names, moments)
        return TypeAdapter(RunState).validate_python(about)
