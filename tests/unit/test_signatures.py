"""The tests check the shapes in signatures at every call."""

import inspect

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from sightline.model import cache, mask, transformer
from sightline.model.mask import Mask
from support import ids, reader, translator


def test_every_forward_has_annotated_shapes():
    modules = [c for _, c in inspect.getmembers(transformer, inspect.isclass) if c.__module__ == transformer.__name__]
    forwards = [c.forward for c in modules if issubclass(c, nn.Module) and "forward" in vars(c)]
    assert len(forwards) >= 12
    for forward in forwards:
        annotations = inspect.signature(forward).parameters.values()
        assert any("Tensor" in str(p.annotation) for p in annotations), forward
        assert not any(p.annotation in (torch.Tensor, inspect.Parameter.empty) for p in annotations if p.name != "self")


def test_a_wrong_shape_or_kind_is_caught():
    model = translator()
    with pytest.raises(TypeCheckError):
        model(ids(2, 5), ids(3, 4))  # two sources, three targets
    with pytest.raises(TypeCheckError):
        model(ids(2, 5), ids(2, 4), torch.ones(2, 6, dtype=torch.bool))  # a layout of another length
    with pytest.raises(TypeCheckError):
        model(ids(2, 5), ids(2, 4), torch.ones(2, 5))  # a mask of numbers
    with pytest.raises(TypeCheckError):
        model(torch.randn(2, 5), ids(2, 4))  # ids must be integers
    with pytest.raises(TypeCheckError):
        reader()(ids(5))  # no batch
    attend = model.encoder.layers[0].self_attention.attend
    q = torch.randn(1, 4, 5, 6)
    with pytest.raises(TypeCheckError):
        attend(q, torch.randn(1, 4, 5, 7), q, Mask())  # keys of another width


@pytest.mark.parametrize("module", [transformer, mask, cache])
def test_no_postponed_annotations(module):
    assert "from __future__ import annotations" not in inspect.getsource(module)
