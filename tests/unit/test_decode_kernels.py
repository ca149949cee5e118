"""The kernels of a decoding step equal plain torch. They run in a separate process."""

import pytest
import torch
import torch.nn.functional as F

from kernels import DEVICE, kernels, needs_triton, run_kernels
from sightline.model.kernels import decode
from sightline.model.kernels.decode import CHUNK, DecodeWindow, attend_rows, summary


@needs_triton
def test_kernels():
    run_kernels(__file__)


def random_rows(sentences, beams, d, capacity=70, dtype=torch.float32):
    rows = sentences * beams
    q = torch.randn(rows, 1, 3, 2, d, device=DEVICE, dtype=dtype).permute(2, 0, 3, 1, 4)[1]  # as `split` returns it
    k, v = torch.randn(2, rows, 2, capacity, d, device=DEVICE, dtype=dtype)
    lengths = torch.randint(1, capacity + 1, (rows,), device=DEVICE)
    lengths[0], lengths[-1] = 1, capacity
    row_index = torch.randint(0, rows, (rows, capacity), device=DEVICE)
    return q, k, v, lengths, row_index


@pytest.mark.parametrize(("sentences", "beams", "d"), [(1, 1, 16), (3, 4, 64), (2, 3, 24)])
def test_rows_read_the_indexed_keys(sentences, beams, d):
    q, k, v, lengths, row_index = random_rows(sentences, beams, d)
    found = attend_rows(q, k, v, DecodeWindow(lengths, row_index))
    sources = attend_rows(q, k[:sentences], v[:sentences], DecodeWindow(lengths[:sentences]))
    place = torch.arange(70, device=DEVICE)
    for row in range(len(q)):
        seen = place[: lengths[row]]
        mine = row_index[row, seen]
        expected = F.scaled_dot_product_attention(
            q[row], k[mine, :, seen].transpose(0, 1), v[mine, :, seen].transpose(0, 1)
        )
        assert (found[row] - expected).abs().max() <= 1e-5
        sentence = row // beams
        n = lengths[sentence]
        expected = F.scaled_dot_product_attention(q[row], k[sentence, :, :n], v[sentence, :, :n])
        assert (sources[row] - expected).abs().max() <= 1e-5


def test_rows_without_keys_return_zeros():
    q, k, v, lengths, row_index = random_rows(3, 1, 16)
    lengths[1] = 0
    for window in (DecodeWindow(lengths, row_index), DecodeWindow(lengths)):
        found = attend_rows(q, k, v, window)
        assert torch.equal(found[1], torch.zeros_like(found[1]))
        assert found.isfinite().all()


@pytest.mark.parametrize("n", [3, CHUNK, 1000, 64 * CHUNK, 9001])
def test_summary_has_the_norm_and_the_highest_of_each_chunk(n):
    scores = torch.randn(5, n, device=DEVICE) * 3
    scores[1, n // 2] = 50
    scores[2, ::2] = -torch.inf
    norm, maxima = summary(scores)
    assert torch.allclose(norm, scores.logsumexp(-1), atol=1e-5)
    assert torch.equal(maxima, torch.stack([part.amax(1) for part in scores.split(CHUNK, 1)], 1))


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sentences", "beams", "d"), [(1, 1, 16), (3, 4, 64), (2, 3, 24), (5, 1, 128)])
def test_attention_by_the_kernel(sentences, beams, d, dtype):
    q, k, v, lengths, row_index = random_rows(sentences, beams, d, dtype=dtype)
    for window in (DecodeWindow(lengths, row_index), DecodeWindow(lengths[:sentences])):
        keys, values = (k, v) if window.row_index is not None else (k[:sentences], v[:sentences])
        kernel = decode._attend_by_kernel(q, keys, values, window)
        plain = attend_rows(
            q.cpu(), keys.cpu(), values.cpu(), DecodeWindow(*(x if x is None else x.cpu() for x in window))
        )
        assert kernel.shape == q.shape
        assert (kernel.cpu() - plain).abs().max() <= (1e-5 if dtype is torch.float32 else 2e-2)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [3, CHUNK, 1000, 64 * CHUNK, 9001])
def test_a_summary_by_the_kernel(n, dtype):
    scores = (torch.randn(5, n, device=DEVICE) * 3).to(dtype)
    scores[1, n // 2] = 50
    scores[2, ::2] = -torch.inf
    norm, maxima = decode._summary_by_kernel(scores)
    plain, expected = summary(scores.cpu())
    assert torch.allclose(norm.cpu(), plain, atol=1e-4)
    assert torch.equal(maxima.cpu(), expected)
