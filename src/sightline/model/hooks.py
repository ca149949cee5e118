"""Hooks on modules that see only the passes of the thread that installs them."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

Before = Callable[[Sequence[Any]], Sequence[Any] | None]
"""Takes all arguments of `forward`, in order, defaults included. May return other arguments."""
After = Callable[[Sequence[Any], Any], Any]
"""Takes all arguments of `forward` and its output. May return another output."""


@contextmanager
def hooks(
    before: Iterable[tuple[nn.Module, Before]] = (),
    after: Iterable[tuple[nn.Module, After]] = (),
    *,
    prepend: bool = False,
) -> Iterator[None]:
    """Call functions before and after modules run on this thread, until the block ends. `prepend`: call them before
    the hooks that are already there."""
    thread, handles = get_ident(), list[RemovableHandle]()

    def hook(module: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        signature = _signature(type(module).forward)

        def called(_: nn.Module, args: Sequence[Any], *rest: Any) -> Any:
            # Check the thread first: while a hook is added or removed, torch may call it on other threads without the
            # keyword arguments.
            if get_ident() != thread:
                return None
            kwargs, *output = rest
            if kwargs or len(args) + 1 < len(signature.parameters):
                bound = signature.bind(module, *args, **kwargs)
                bound.apply_defaults()
                args = tuple(bound.arguments.values())[1:]
            changed = call(args, *output)
            return (tuple(changed), {}) if changed is not None and not output else changed

        return called

    try:
        for module, enter in before:
            handles.append(module.register_forward_pre_hook(hook(module, enter), with_kwargs=True, prepend=prepend))
        for module, leave in after:
            handles.append(module.register_forward_hook(hook(module, leave), with_kwargs=True, prepend=prepend))
        yield
    finally:
        for handle in handles:
            handle.remove()


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    """Return a signature. Reading it for every hook takes longer than a step of a small model."""
    return inspect.signature(forward)
