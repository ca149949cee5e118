"""The files of a model folder. Loading them cannot run code.

    config.json               format, task, trained source length, and the options of the model
    model.safetensors         the weights
    tokenizer.model           the vocabulary; source-tokenizer.model, if sources have their own
    vmap.txt                  a shortlist, optional
    alignment.json            the attention heads that are used for alignments, optional
    examples.txt              sentences to try, optional
    ctranslate2[-int8]/       the model in CTranslate2's format, written when it is first needed
    states/step-<number>/     earlier states of the same training run, each a model folder, optional

Files that are made from a bundled model go to the user's cache instead.
"""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sightline.config import ModelConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.files import cache_folder, read_json_object, write_files
from sightline.model.transformer import Model, build
from sightline.text.tokenizer import FILE, SOURCE_FILE, Tokenizer

__all__ = ["ModelFolder", "bundled_models", "count_parameters", "load_model", "load_tokenizer", "save_model"]

Task = Literal["translate", "write", "chat", "read"]

FORMAT = 1
"""The version of the folder's layout. It increases only when older folders can no longer be read."""
BUNDLED = Path(__file__).parent / "shipped"
"""The folder of the models that come with Sightline."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
ALIGNMENT, EXAMPLES, SHORTLIST = "alignment.json", "examples.txt", "vmap.txt"
TASKS: dict[str, Task] = {"encoder-decoder": "translate", "decoder-only": "write", "encoder-only": "read"}
"""The task of a model whose config.json names none, by architecture."""


class ModelFolder:
    """A model on disk, by its folder or by the name of a bundled model: "coref", "coref/states/step-00000080"."""

    def __init__(self, model: Path | str) -> None:
        own, bundled = Path(model), BUNDLED / model
        self.path = bundled if not _is_model(own) and _is_model(bundled) else own

    def __repr__(self) -> str:
        return f"ModelFolder({str(self.path)!r})"

    @cached_property
    def _about(self) -> dict[str, Any]:
        path = self.path / CONFIG
        if not _is_model(self.path):
            problem = f"no model found: {CONFIG} is missing. Run `sightline models` for the names of bundled models."
            raise CheckpointError(f"{self.path}: {problem}", value=self.path)
        about = read_json_object(path)
        if "format" not in about or not isinstance(about.get("model"), dict):
            raise CheckpointError(f"{path}: not the configuration of a model.", value=path)
        if about["format"] != FORMAT:
            problem = f"the folder has format {about['format']}; this version of Sightline reads format {FORMAT}."
            raise CheckpointError(f"{path}: {problem}", value=path)
        return about

    @cached_property
    def config(self) -> ModelConfig:
        """The options of the model."""
        try:
            return ModelConfig(**self._about["model"])
        except ConfigError as error:
            raise CheckpointError(f"{self.path / CONFIG}: {error}", option=error.option, value=error.value) from None

    @property
    def task(self) -> Task:
        """The task that the model was trained for."""
        task = self._about.get("task", TASKS[self.config.architecture])
        if task not in get_args(Task):
            raise CheckpointError(f"{self.path / CONFIG}: unknown `task`: {task!r}.", option="task", value=task)
        return task

    @property
    def trained_source_length(self) -> int | None:
        """Tokens of a long source in training; 1 if sources were single sentences, None if unknown."""
        found = self._about.get("trained_source_length")
        if found is None and (self.path / "run.json").exists():  # a run of version 0.1
            found = read_json_object(self.path / "run.json").get("usual_length")
        return found if isinstance(found, int) else None

    @property
    def cache(self) -> Path:
        """The folder for files made from this model: itself, or one in the user's cache for a bundled model."""
        path, bundled = self.path.resolve(), BUNDLED.resolve()
        return cache_folder() / "models" / path.relative_to(bundled) if bundled in path.parents else self.path

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.path / WEIGHTS

    @property
    def states(self) -> list[Path]:
        """The folders of earlier states of the training run."""
        return sorted(self.path.glob("states/*"))

    def file(self, name: str) -> Path:
        """The file of this name: the user's own in `cache` if there is one, else the model's."""
        own = self.cache / name
        return own if own.exists() else self.path / name

    def converted(self, precision: str) -> Path:
        """The folder of the model in CTranslate2's format, which may not exist yet."""
        return self.cache / ("ctranslate2" if precision == "float32" else f"ctranslate2-{precision}")

    def load_model(self, device: torch.device | str = "cpu") -> Model:
        """Load the model in float32, in evaluation mode."""
        with _SkipInitialisation():
            model = build(self.config)
        try:
            weights = load_file(self.weights)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.weights}: the weights cannot be read: {error}.", value=self.weights) from None
        set_weights(model, weights, str(self.weights))
        return model.to(device).eval()

    def load_tokenizer(self) -> Tokenizer:
        """Load the vocabulary."""
        path, source = self.path / FILE, self.path / SOURCE_FILE
        if not path.exists():
            _ = self.config  # a folder without any model gets that error
            raise CheckpointError(f"{self.path}: {FILE} is missing.", value=self.path)
        found = Tokenizer.load(path)
        return Tokenizer(found.model, str(path), Tokenizer.load(source)) if source.exists() else found

    def count_parameters(self) -> int:
        """Count the parameters by the header of the weights' file; raise an error if the file is incomplete."""
        try:
            with safe_open(self.weights, "pt") as file:
                return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no dict
        except (OSError, SafetensorError):
            raise CheckpointError(f"{self.weights}: the weights are missing or damaged.", value=self.weights) from None

    def alignment_heads(self) -> tuple[list[tuple[int, int]], Literal["predicts", "reads"]] | None:
        """Return the heads (layer, head) chosen for alignments and the step at which they count, if any are chosen."""
        path = self.file(ALIGNMENT)
        if not path.exists():
            return None
        about, stack = read_json_object(path), self.config.decoder
        try:
            heads = [(int(layer), int(head)) for layer, head in about["heads"]]
            if not heads or not all(0 <= i < stack.layers and 0 <= j < stack.heads for i, j in heads):
                raise ValueError
            return heads, {"predicts": "predicts", "reads": "reads"}[about["step"]]  # type: ignore[return-value]
        except (ValueError, KeyError, TypeError):
            problem = "the model has no such attention heads. Delete the file to use all heads."
            raise CheckpointError(f"{path}: {problem}", value=path) from None

    def examples(self) -> tuple[list[str], str | None]:
        """Return the sentences to try, and the comments on them: lines that begin with #."""
        try:
            lines = [line.strip() for line in (self.path / EXAMPLES).read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            return [], None
        about = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        return [line for line in lines if line and not line.startswith("#")], about or None


def bundled_models() -> list[str]:
    """Return the names of the models that come with Sightline."""
    return sorted(path.name for path in BUNDLED.iterdir() if _is_model(path))


def _is_model(folder: Path) -> bool:
    try:
        return (folder / CONFIG).exists()
    except OSError:  # the name is too long, or the folder cannot be opened
        return False


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> Model:
    """Load a model in float32, in evaluation mode."""
    return ModelFolder(folder).load_model(device)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Load the vocabulary of a model."""
    return ModelFolder(folder).load_tokenizer()


def save_model(
    model: Model,
    folder: Path | str,
    tokenizer: Tokenizer | None = None,
    *,
    task: Task | None = None,
    trained_source_length: int | None = None,
) -> None:
    """Write a model folder. After a crash the folder has the old model or the new one. `task`: by default that of the
    architecture."""
    with torch.device("meta"), _SkipInitialisation():
        named = dict(build(model.config).named_parameters(remove_duplicate=False))
    first: dict[Tensor, str] = {}
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in named.items():
        if weight not in first:
            first[weight] = name
        elif not torch.equal(weights[name], weights[first[weight]]):  # an engine on a CPU unties the classifier
            problem = f"the weights differ from {first[weight]!r}, but the configuration ties both."
            raise CheckpointError(f"{name}: {problem}", value=name)
    tensors = {name: weights[name].detach() for name in first.values()}
    save_weights(tensors, model.config, folder, tokenizer, task=task, trained_source_length=trained_source_length)


def save_weights(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: Path | str,
    tokenizer: Tokenizer | None = None,
    *,
    task: Task | None = None,
    trained_source_length: int | None = None,
) -> None:
    """Write a model folder from weights that are not in a model."""
    about = {
        "format": FORMAT,
        "task": task or TASKS[config.architecture],
        "trained_source_length": trained_source_length,
        "model": config.model_dump(),  # defaults included, because they may change
    }
    files = {
        WEIGHTS: save({name: weight.contiguous().cpu() for name, weight in weights.items()}),
        CONFIG: json.dumps(about, indent=2).encode() + b"\n",
    }
    write_files(folder, files | (tokenizer.files if tokenizer else {}))


class _SkipInitialisation(TorchFunctionMode):
    """Build models without drawing random weights: their weights are loaded later, or only counted.

    Drawing takes time, and on the meta device it first imports torch's compiler (about a second).
    """

    DRAWS = (nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def set_weights(model: Model, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model; the names must be those of its parameters. `where` describes them in errors."""
    parameters = dict(model.named_parameters())
    missing, unknown = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    if missing or unknown:
        which = f"lack {missing[0]!r}" if missing else f"have an unknown {unknown[0]!r}"
        raise CheckpointError(f"{where}: the weights {which}, so they do not fit the model's configuration.")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shape, expected = tuple(weights[name].shape), tuple(parameter.shape)
            raise CheckpointError(f"{where}: {name!r} has the shape {shape}; the configuration needs {expected}.")
        parameter.copy_(weights[name])


def count_parameters(model: ModelConfig | torch.nn.Module) -> int:
    """Count the parameters of a model, or of a configuration without creating its weights; tied ones count once."""
    if isinstance(model, ModelConfig):
        with torch.device("meta"), _SkipInitialisation():
            model = build(model)
    return sum(parameter.numel() for parameter in model.parameters())
