"""Hooks read and change the passes of their own thread, and only inside the block."""

import threading

import pytest
import torch

from sightline.model.hooks import hooks
from support import hooks as count_hooks


class Scale(torch.nn.Module):
    def forward(self, x, factor=2.0):
        return x * factor


def test_functions_get_all_arguments_in_order():
    seen = []
    module, x = Scale(), torch.ones(2)
    with hooks(before=[(module, seen.append)], after=[(module, lambda args, y: seen.append([*args, y]))]):
        module(x)
        module(factor=3.0, x=x)
    assert [args[1] for args in seen] == [2.0, 2.0, 3.0, 3.0]
    assert torch.equal(seen[-1][2], x * 3)


def test_results_replace_arguments_and_outputs():
    module, x = Scale(), torch.ones(2)
    with hooks(before=[(module, lambda args: (args[0], 5.0))]):
        assert torch.equal(module(x), x * 5)
    with hooks(after=[(module, lambda args, y: y + args[1])]):
        assert torch.equal(module(x), x * 2 + 2)
    assert torch.equal(module(x), x * 2)


def test_prepended_functions_run_first():
    module, x = Scale(), torch.ones(2)
    with hooks(after=[(module, lambda _, y: y + 1)]), hooks(after=[(module, lambda _, y: y * 10)], prepend=True):
        assert torch.equal(module(x), x * 21)


def test_other_threads_are_not_affected():
    module, x, found = Scale(), torch.ones(2), []
    with hooks(after=[(module, lambda *_: torch.zeros(2))]):
        thread = threading.Thread(target=lambda: found.append(module(x)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], x * 2)


def test_hooks_are_removed_after_an_exception():
    module = Scale()
    with pytest.raises(KeyError), hooks(before=[(module, lambda _: None)], after=[(module, lambda *_: None)]):
        raise KeyError
    assert count_hooks(module) == 0
