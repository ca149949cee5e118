"""Atomic files and folders, file locks, JSON objects and optional packages."""

import contextlib
import importlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sightline.errors import CheckpointError, InputError, SightlineError


def write_files(folder: Path | str, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if it is missing. After a crash each file is complete: old or new."""
    folder = Path(folder)
    partial = {name: folder / f".{name}.partial" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with partial[name].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for name, path in partial.items():
            path.replace(folder / name)
    except OSError as error:
        for path in partial.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise not_written(folder, error) from None


@contextlib.contextmanager
def draft_folder(folder: Path, writer: str = "") -> Iterator[Path]:
    """Yield an empty folder that is renamed to `folder` after the block, and removed if the block fails.

    Several writers may work at the same time if each has its own name.
    """
    draft = folder.with_name(f".{folder.name}{writer}.partial")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def replacing_folder(folder: Path, mark: str, kind: str) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` after the block.

    An older folder is replaced only if it was written here: it has a file `mark`, and a config.json with an entry
    "sightline". `kind` describes such models in the error: "exported", for example.
    """
    if not _may_replace(folder, mark):
        raise InputError(
            f"{folder} exists and is not a model {kind} by Sightline. Choose another folder.", value=folder
        )
    old = folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(old, ignore_errors=True)
        with draft_folder(folder) as draft:
            yield draft
            if folder.exists():
                folder.replace(old)
    except OSError as error:
        raise not_written(folder, error) from None
    finally:
        if old.exists() and not folder.exists():
            old.replace(folder)
        shutil.rmtree(old, ignore_errors=True)


def _may_replace(folder: Path, mark: str) -> bool:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return True
    try:
        return (folder / mark).exists() and "sightline" in read_json_object(folder / "config.json")
    except CheckpointError:
        return False


def not_written(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file or folder that cannot be written."""
    return CheckpointError(f"{path}: cannot be written: {error.strerror}.", value=path)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Return the user's folder for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def lock(file: IO[bytes], *, wait: bool) -> bool:
    """Lock an open file until it is closed; return whether it is locked now. `wait` until its owner closes it.

    Return True on systems without file locks.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time write a file or folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f".{path.name}.lock").open("ab")
    except OSError as error:
        raise not_written(path, error) from None
    with file:
        lock(file, wait=True)
        yield


def read_file(path: Path, *, error: type[SightlineError] = CheckpointError) -> bytes:
    """Read a file."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}.", value=path) from None


def read_json_object(path: Path, *, error: type[SightlineError] = CheckpointError) -> dict[str, Any]:
    """Read the object in a JSON file."""
    return parse_json_object(read_file(path, error=error), path, error=error)


def parse_json_object(
    data: bytes | str, path: Path | str, *, error: type[SightlineError] = CheckpointError
) -> dict[str, Any]:
    """Parse the object in the JSON text of the file `path`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise error(f"{path}: not a JSON object.", value=path)
    return found


def optional_import(name: str, *, extra: str = "", package: str = "") -> Any:
    """Import a module that `pip install sightline[extra]` brings, or `pip install package`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        install = package or f"'sightline[{extra}]'"
        raise InputError(f"The package {name} is not installed. Run `pip install {install}`.", value=name) from None
