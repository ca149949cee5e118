"""Download models from the Hugging Face hub into its usual cache: only the files that an import reads, never code.

The checksum of each file is compared with that of the hub, also if the file was in the cache already.
"""

import contextlib
import fnmatch
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, InputError, SightlineError
from sightline.files import optional_import
from sightline.interop.hugging_face_files import shards

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
"""The first format that a model has is used. Pickles (.bin) can contain code; loading them allows tensors only."""
LAST = "config.json"
"""Downloaded after all other files, so a cache that has it has all."""
TIMEOUT = 10
"""Seconds to wait for an answer of the hub."""
EXAMPLE = "Helsinki-NLP/opus-mt-en-de"


def find_model(
    source: str, *, revision: str | None = None, offline: bool = False, log: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the folder or package with this path, or else the downloaded model of this name on the hub. `log` receives
    one line before a download."""
    path = Path(source)
    if path.exists():
        return path
    if "/" not in source or not NAME.fullmatch(source):
        raise InputError(
            f"{source}: no such folder or package, and not a name on the Hugging Face hub (OWNER/MODEL).", value=source
        )
    return fetch(source, revision=revision, offline=offline, log=log)


def fetch(
    name: str, *, revision: str | None = None, offline: bool = False, log: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the folder with the files of a model, by its name on the hub, such as Helsinki-NLP/opus-mt-en-de.

    `revision`: a branch, tag or commit; by default the newest commit. `offline` (or HF_HUB_OFFLINE=1): use the cache
    only. `log` receives one line before the download.
    """
    hub = optional_import("huggingface_hub", extra="export")
    if not NAME.fullmatch(name) or ".." in name:
        raise _invalid(name)
    if offline or optional_import("huggingface_hub.constants", extra="export").HF_HUB_OFFLINE:
        return _cached(hub, name, revision)
    with _hub_errors(name, revision):
        about = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT)
    files = _needed(name, {file.rfilename: file for file in about.siblings})
    size = sum(file.size or 0 for file in files)
    log(f"{name}: {len(files)} files, {size / 1e6:.1f} MB in total.")
    paths = [_download(hub, name, revision, file) for file in files]
    if {path.parent.name for path in paths} != {about.sha}:
        raise InputError(f"{name}: the model changed during the download. Download it again.", value=name)
    return paths[-1].parent


def _invalid(name: str) -> InputError:
    return InputError(f"Invalid name of a model on the hub: {name!r}. A valid name is {EXAMPLE}.", value=name)


def _needed(name: str, files: dict[str, Any]) -> list[Any]:
    """Return the files that an import reads."""
    weights = next((found for patterns in WEIGHTS if (found := _matching(files, patterns))), [])
    for file, exists in ((LAST, LAST in files), ("model.safetensors or pytorch_model.bin", bool(weights))):
        if not exists:
            raise InputError(f"{name}: the model has no {file} on the hub, so it cannot be imported.", value=name)
    return [files[file] for file in (*_matching(files, NEEDED), *weights, LAST)]


def _matching(files: Sequence[str] | dict[str, Any], patterns: list[str]) -> list[str]:
    return sorted(file for file in files if any(fnmatch.fnmatchcase(file, p) and "/" not in file for p in patterns))


def _download(hub: Any, name: str, revision: str | None, file: Any) -> Path:
    """Download a file into the cache and verify its checksum."""
    with _hub_errors(name, revision):
        url = hub.hf_hub_url(name, file.rfilename, revision=revision)
        hub.get_hf_file_metadata(url, timeout=TIMEOUT)  # without a network, the next line tries for minutes
        path = Path(hub.hf_hub_download(name, file.rfilename, revision=revision, etag_timeout=TIMEOUT))
    if _checksum(path, of_content=file.lfs is not None) != (file.blob_id if file.lfs is None else file.lfs["sha256"]):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{name}: {file.rfilename} has the wrong checksum and was deleted. Download it again.", value=path
        )
    return path


def _checksum(path: Path, *, of_content: bool) -> str:
    """Return the SHA-256 of a large file, or the hash that git gives to other files."""
    found = hashlib.sha256() if of_content else hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: found).hexdigest()


def _cached(hub: Any, name: str, revision: str | None) -> Path:
    """Return the folder in the cache."""
    found = hub.try_to_load_from_cache(name, LAST, revision=revision)
    if not isinstance(found, str):
        version = "" if revision is None else f" at {revision}"
        raise InputError(
            f"{name}{version} is not in the cache. Download it once without `offline`.", option="offline", value=name
        )
    folder = Path(found).parent
    names = [path.name for path in folder.iterdir()]
    weights = next((found for patterns in WEIGHTS if (found := _matching(names, patterns))), [])
    indices = [folder / name for name in weights if name.endswith(".json")]
    lacking = [shard for index in indices for shard in shards(index) if shard not in names]
    if lacking or not weights:
        raise InputError(
            f"{name}: {lacking[0] if lacking else 'the file of its weights'} is not in the cache. "
            "Download it without `offline`.",
            option="offline",
            value=name,
        )
    return folder


@contextlib.contextmanager
def _hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Translate the exceptions of the library."""
    errors = optional_import("huggingface_hub.errors", extra="export")
    try:
        yield
    except errors.HFValidationError:
        raise _invalid(name) from None
    except errors.GatedRepoError:
        problem = "access is restricted by its owner. Request access on its page, then run `hf auth login`"
    except errors.RepositoryNotFoundError:
        problem = "not found on the hub. If the model is private, run `hf auth login`"
    except errors.RevisionNotFoundError:
        raise InputError(
            f"{name}: `revision` {revision!r} not found on the hub.", option="revision", value=revision
        ) from None
    except SightlineError:
        raise
    except Exception as error:  # their classes differ between versions and transports
        problem = f"the hub does not answer: {_reason(error)}. Use `offline` for models in the cache"
    else:
        return
    raise InputError(f"{name}: {problem}.", value=name)


def _reason(error: Exception) -> str:
    """Return the first line of an error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
