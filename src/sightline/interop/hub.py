"""Files of models on the Hugging Face hub, in its usual cache: only what an import needs, and none that is code.

Each file is compared with what the hub says of it, also when it was there already.
"""

import contextlib
import fnmatch
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, InputError, SightlineError
from sightline.files import optional_import

__all__ = ["fetch"]

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
NEEDED = [
    "generation_config.json",
    "*.spm",
    "*vocab*.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer*.json",
    "special_tokens_map.json",
]
WEIGHTS = [["*.safetensors", "*.safetensors.index.json"], ["pytorch_model*.bin", "pytorch_model*.bin.index.json"]]
"""The first of these that a model has; the second can hold more than numbers, and is read with care."""
LAST = "config.json"
"""Fetched after all others: where it is, they are."""
PATIENCE = 10
"""Seconds that a silent hub is waited for."""


def fetch(
    name: str, *, revision: str | None = None, offline: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Path:
    """The folder with the files of a model, by its name on the hub, such as Helsinki-NLP/opus-mt-en-de.

    `revision` is a branch, a tag or a commit; without one, it is the newest state. `offline` (or HF_HUB_OFFLINE=1) asks
    nobody: what was fetched before is found. `tell` gets a line on what is about to be done.
    """
    hub = optional_import("huggingface_hub", extra="export")
    if not NAME.fullmatch(name) or ".." in name:
        raise InputError(f"{name!r} is no name of a model on the hub; Helsinki-NLP/opus-mt-en-de is one.")
    if offline or optional_import("huggingface_hub.constants", extra="export").HF_HUB_OFFLINE:
        return _kept(hub, name, revision)
    with _asking(name, revision):
        about = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=PATIENCE)
    files = _needed(name, {file.rfilename: file for file in about.siblings})
    size = sum(file.size or 0 for file in files)
    tell(f"{name}: {len(files)} files, {size / 1e6:.1f} MB in all.")
    with _quiet_unless_seen():
        paths = [_fetched(hub, name, revision, file) for file in files]
    if {path.parent.name for path in paths} != {about.sha}:
        raise InputError(f"{name}: the model was changed on the hub while it was fetched; ask for it again.")
    return paths[-1].parent


def _needed(name: str, files: dict[str, Any]) -> list[Any]:
    """Those of a model's files that an import reads."""
    weights = next((found for patterns in WEIGHTS if (found := _matching(files, patterns))), [])
    for what, there in ((LAST, LAST in files), ("weights in safetensors or pytorch_model.bin", bool(weights))):
        if not there:
            raise InputError(f"{name}: the model has no {what} on the hub, so it cannot be imported.")
    return [files[file] for file in (*_matching(files, NEEDED), *weights, LAST)]


def _matching(files: Sequence[str] | dict[str, Any], patterns: list[str]) -> list[str]:
    return sorted(file for file in files if any(fnmatch.fnmatchcase(file, p) and "/" not in file for p in patterns))


def _fetched(hub: Any, name: str, revision: str | None, file: Any) -> Path:
    """One file, in the cache, as the hub has it."""
    with _asking(name, revision):
        place = hub.hf_hub_url(name, file.rfilename, revision=revision)
        hub.get_hf_file_metadata(place, timeout=PATIENCE)  # the next line would ask a dead network for minutes
        path = Path(hub.hf_hub_download(name, file.rfilename, revision=revision, etag_timeout=PATIENCE))
    if _checksum(path, of_content=file.lfs is not None) != (file.blob_id if file.lfs is None else file.lfs["sha256"]):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{name}: {file.rfilename} is not what the hub says of it; it was removed, fetch it anew."
        )
    return path


def _checksum(path: Path, *, of_content: bool) -> str:
    """The SHA-256 of large files; git's own number, which counts their length in, of others."""
    found = hashlib.sha256() if of_content else hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _kept(hub: Any, name: str, revision: str | None) -> Path:
    """The folder in the cache."""
    found = hub.try_to_load_from_cache(name, LAST, revision=revision)
    if not isinstance(found, str):
        which = name if revision is None else f"{name} at {revision}"
        raise InputError(f"{which} is not in the cache; it must be fetched once without offline.")
    folder = Path(found).parent
    names = [path.name for path in folder.iterdir()]
    weights = next((found for patterns in WEIGHTS if (found := _matching(names, patterns))), [])
    lacking = [shard for index in weights if index.endswith(".json") for shard in _shards(folder / index)]
    lacking = [shard for shard in lacking if shard not in names]
    if lacking or not weights:
        raise InputError(
            f"{name}: the cache lacks {lacking[0] if lacking else 'its weights'}; fetch it without offline."
        )
    return folder


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index}: this is no list of a model's weights.") from None


@contextlib.contextmanager
def _asking(name: str, revision: str | None) -> Iterator[None]:
    """What the library raises becomes one sentence."""
    errors = optional_import("huggingface_hub.errors", extra="export")
    try:
        yield
    except errors.HFValidationError:
        problem = f"{name!r} is no name of a model on the hub; Helsinki-NLP/opus-mt-en-de is one."
    except errors.GatedRepoError:
        problem = f"{name}: the model is given only to whom its owner lets in; ask there, and log in by hf auth login."
    except errors.RepositoryNotFoundError:
        problem = f"there is no model {name} on the hub; or it is private, and you are to log in by hf auth login."
    except errors.RevisionNotFoundError:
        problem = f"{name}: the model has no revision {revision!r} on the hub."
    except SightlineError:
        raise
    except Exception as error:  # which ones these are differs between the library's versions and transports
        problem = f"{name}: the hub cannot be reached, or fails: {_reason(error)}; what was fetched is found offline."
    else:
        return
    raise InputError(problem)


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _quiet_unless_seen() -> Iterator[None]:
    """The library's progress bars are for a terminal."""
    bars = optional_import("huggingface_hub.utils", extra="export")
    if sys.stderr.isatty() or bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()
