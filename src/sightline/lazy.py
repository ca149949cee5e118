"""Public names of packages, whose modules are imported when a name is first used.

A package imports its public names under `if TYPE_CHECKING:`, for type checkers and readers. Python does each of these
imports at the first use of its name, so that importing a package stays fast and optional packages stay optional.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package for the names in its `__all__`."""
    module = sys.modules[package]

    @cache
    def modules() -> dict[str, str]:
        imports = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in module.__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules()[name]), name)
        setattr(module, name, value)
        return value

    return get, lambda: [*module.__all__, "__version__"] if package == "sightline" else list(module.__all__)
