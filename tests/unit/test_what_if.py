"""Edits of a what_if change the named parts only, inside the block and on its thread."""

import subprocess
import sys
import threading

import pytest
import torch

from sightline.errors import InputError, TraceError
from sightline.model.protocol import Inputs
from sightline.special import PAD
from sightline.trace.watch import tracing
from sightline.trace.what_if import PARTS, what_if
from support import difference, every_variant, hooks, ids, pad, raises, reader, translator, writer

SELF = "encoder.layers.1.self_attention"
MASKED = "decoder.layers.1.self_attention"
CROSS = "decoder.layers.2.cross_attention"


@every_variant
@pytest.mark.parametrize("part", PARTS)
@torch.no_grad()
def test_every_switch_changes_the_output_and_is_undone(variant, part):
    if variant == "no positions" and part == "positions":
        return
    model = translator(variant)
    source, layout = pad([ids(6), ids(3)])
    inputs = (source, ids(2, 5), layout)
    before = model(*inputs)
    with what_if(model, without=[part]), tracing(model) as trace:
        changed = model(*inputs)
    assert changed.isfinite().all()
    assert difference(before, changed) > 1e-4
    assert max(trace.check().values()) <= 1e-5 * max(1.0, changed.abs().max().item())
    assert hooks(model) == 0
    assert torch.equal(model(*inputs), before)


@torch.no_grad()
def test_removing_a_head_is_zeroing_its_columns_of_the_output_matrix():
    model, inputs = translator(), (ids(2, 6), ids(2, 5))
    with what_if(model, remove_heads={SELF: [0, 2], CROSS: [1]}):
        removed = model(*inputs)
    for path, heads in ((SELF, [0, 2]), (CROSS, [1])):
        module = model.get_submodule(path)
        for head in heads:
            d_k = 24 // module.heads
            module.output.weight[:, head * d_k : (head + 1) * d_k] = 0
    assert difference(model(*inputs), removed) <= 1e-6


@torch.no_grad()
def test_other_heads_stay_bit_for_bit():
    model, inputs = translator(), (ids(2, 6), ids(2, 5))
    with tracing(model) as before:
        model(*inputs)
    with what_if(model, scale_heads={SELF: {1: 3.0}}), tracing(model) as after:
        model(*inputs)
    a, b = before[f"{SELF}.z"].values, after[f"{SELF}.z"].values
    assert torch.equal(a[:, [0, 2, 3]], b[:, [0, 2, 3]])
    assert torch.equal(a[:, 1] * 3, b[:, 1])


@torch.no_grad()
def test_an_averaged_head_attends_equally_to_all_allowed_keys():
    model = translator()
    source, layout = pad([ids(6), ids(3)])
    with what_if(model, average_heads={SELF: [1], MASKED: [0], CROSS: [0]}), tracing(model) as trace:
        model(source, ids(2, 4), layout)
    assert torch.equal(trace[f"{SELF}.probabilities"].values[0, 1], torch.full((6, 6), 1 / 6))
    assert torch.equal(trace[f"{SELF}.probabilities"].values[1, 1], torch.tensor([1 / 3] * 3 + [0] * 3).expand(6, 6))
    assert torch.equal(trace[f"{CROSS}.probabilities"].values[0, 0], torch.full((4, 6), 1 / 6))
    even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    assert difference(trace[f"{MASKED}.probabilities"].values[0, 0], even) <= 1e-7
    assert max(trace.check().values()) <= 1e-5


@torch.no_grad()
def test_the_row_of_a_set_cell_still_sums_to_one():
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    with tracing(model) as before:
        model(*inputs)
    with what_if(model, set_attention={CROSS: {(1, 3, 2): 0.75}}), tracing(model) as after:
        model(*inputs)
    a, b = before[f"{CROSS}.probabilities"].values[0], after[f"{CROSS}.probabilities"].values[0]
    assert b[1, 3, 2] == 0.75
    others = [0, 1, 3, 4, 5]
    assert difference(b[1, 3, others] / 0.25, a[1, 3, others] / (1 - a[1, 3, 2])) <= 1e-5
    assert difference(b.sum(-1), torch.ones(2, 5)) <= 1e-6
    rest = torch.ones_like(a, dtype=torch.bool)
    rest[1, 3] = False
    assert torch.equal(a[rest], b[rest])
    assert max(after.check().values()) <= 1e-5


@torch.no_grad()
def test_cached_steps_with_beams_have_the_same_edits():
    model = translator()
    source, layout = pad([ids(6), ids(4)])
    target = ids(6, 5)
    edits = {
        "remove_heads": {MASKED: [1]},
        "average_heads": {"decoder.layers.0.self_attention": [0]},
        "set_attention": {CROSS: {(0, 2, 1): 0.9}, "decoder.layers.2.self_attention": {(1, 3, 0): 0.6}},
        "without": ["scale", "norms@decoder.layers.1", "residuals@decoder.layers.0"],
    }
    with what_if(model, **edits):
        full = model(source.repeat_interleave(3, 0), target, layout.repeat_interleave(3, 0))
        cache = model.start(Inputs(source, source_layout=layout), capacity=5, beams=3)
        steps = torch.stack([model.step(target[:, i : i + 1], cache) for i in range(5)], 1)
    assert difference(steps, full) <= 1e-5 * max(1.0, full.abs().max().item())


@torch.no_grad()
def test_without_positions_word_order_is_lost():
    for variant in ("paper", "rotary", "learned"):
        model = reader(variant)
        a, b = torch.tensor([[1, 7, 8, 9]]), torch.tensor([[1, 9, 8, 7]])
        assert difference(model.encoder(a)[:, 0], model.encoder(b)[:, 0]) > 1e-3
        with what_if(model, without=["positions"]):
            assert difference(model.encoder(a)[:, 0], model.encoder(b)[:, 0]) <= 1e-5


@pytest.mark.parametrize("variant", ["paper", "pre-norm", "halves", "learned", "rotary"])
@torch.no_grad()
def test_without_positions_the_vectors_of_an_encoder_permute_with_the_tokens(variant):
    model, source, order = translator(variant), ids(1, 9), torch.randperm(9)
    assert difference(model.encoder(source[:, order]), model.encoder(source)[:, order]) > 1e-3
    with what_if(model, without=["positions"]):
        expected = model.encoder(source)[:, order]
        assert difference(model.encoder(source[:, order]), expected) <= 1e-5 * expected.abs().max()


@every_variant
@torch.no_grad()
def test_without_the_scale_the_entropy_of_each_row_falls(variant):
    """In the first layer, whose scores are otherwise the same."""
    model, inputs, name = translator(variant), (ids(2, 6), ids(2, 5)), "encoder.layers.0.self_attention.probabilities"
    with tracing(model) as before:
        model(*inputs)
    with what_if(model, without=["scale"]), tracing(model) as after:
        model(*inputs)
    rows, sharper = (torch.special.entr(trace[name].values).sum(-1) for trace in (before, after))
    assert (sharper <= rows + 1e-6).all()
    assert sharper.mean() < rows.mean() - 1e-4


@torch.no_grad()
def test_without_the_mask_padding_stays_hidden():
    """A caller that scores a batch gives no layout of the targets: with the mask, no token sees the padding."""
    model, source = translator(), ids(2, 6)
    target = ids(2, 5)
    target[1, 3:] = PAD
    with what_if(model, without=["look-ahead-mask"]):
        together, alone = model(source, target), model(source[1:], target[1:, :3])
    assert difference(together[1, :3], alone[0]) <= 1e-5


@torch.no_grad()
def test_without_the_mask_earlier_positions_see_later_ones():
    model, target = writer(), ids(1, 5)
    other = target.clone()
    other[0, 4] = (other[0, 4] + 1) % 41
    assert torch.equal(model(target)[:, :4], model(other)[:, :4])
    with what_if(model, without=["look-ahead-mask"]):
        assert difference(model(target)[:, 0], model(other)[:, 0]) > 1e-4


@torch.no_grad()
def test_a_part_can_be_switched_off_in_one_place():
    model, inputs = translator("pre-norm"), (ids(1, 6), ids(1, 5))
    with what_if(model, without=["feed-forward@encoder.layers.1"]), tracing(model) as trace:
        model(*inputs)
    assert trace["encoder.layers.1.feed_forward.output"].values.abs().max() == 0
    assert trace["encoder.layers.0.feed_forward.output"].values.abs().max() > 0
    a, b = (trace[f"encoder.layers.1.feed_forward_residual.{name}"].values for name in ("input", "output"))
    assert torch.equal(a, b)


@torch.no_grad()
def test_other_threads_are_not_affected():
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    expected = model(*inputs)
    with what_if(model, without=["norms", "residuals", "positions", "feed-forward"], remove_heads={SELF: [0]}):
        altered = model(*inputs)
    problems: list[str] = []

    def run(edit: bool) -> None:
        with torch.no_grad():
            for _ in range(8):
                if edit:
                    off = ["norms", "residuals", "positions", "feed-forward"]
                    with what_if(model, without=off, remove_heads={SELF: [0]}):
                        same = torch.equal(model(*inputs), altered)
                else:
                    same = torch.equal(model(*inputs), expected)
                if not same:
                    problems.append("edited" if edit else "plain")

    threads = [threading.Thread(target=run, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert hooks(model) == 0


def test_undone_after_an_exception():
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    before = model(*inputs)
    with pytest.raises(ZeroDivisionError), what_if(model, without=["norms", "residuals"]):
        model(*inputs)
        raise ZeroDivisionError
    assert hooks(model) == 0
    assert torch.equal(model(*inputs), before)
    with what_if(model):  # and nothing is left in force
        assert torch.equal(model(*inputs), before)


@pytest.mark.parametrize(
    ("edits", "option", "value"),
    [
        ({"remove_heads": {"encoder.layer.1.self_attention": [0]}}, "remove_heads", "encoder.layer.1.self_attention"),
        ({"remove_heads": {SELF: [4]}}, "remove_heads", 4),
        ({"set_attention": {SELF: {(0, 0, 0): 1.5}}}, "set_attention", 1.5),
        ({"remove_heads": {SELF: [1]}, "scale_heads": {SELF: {1: 2.0}}}, "scale_heads", 1),
        ({"set_attention": {SELF: {(0, 1, -1): 0.5}}}, "set_attention", (0, 1, -1)),
        ({"set_attention": {SELF: {(0, 1, 1): 0.9, (0, 1, 2): 0.9}}}, "set_attention", (0, 1, 2)),
        ({"without": "norms"}, "without", "norms"),
        ({"without": ["look-ahead-mask@encoder"]}, "without", "look-ahead-mask@encoder"),
        ({"without": ["positions@encoder.layers.0"]}, "without", "positions@encoder.layers.0"),
        ({"without": ["attention"]}, "without", "attention"),
        ({"without": ["norms@encoder.layers.9"]}, "without", "norms@encoder.layers.9"),
    ],
)
def test_invalid_edits(edits, option, value):
    model = translator()
    with raises(TraceError, option=option, value=value), what_if(model, **edits):
        pass
    assert hooks(model) == 0


def test_a_misspelt_path_is_corrected():
    with (
        pytest.raises(TraceError, match=f"{SELF}"),
        what_if(translator(), remove_heads={SELF.replace("s.1", ".1"): [0]}),
    ):
        pass


def test_cells_that_do_not_exist():
    model = translator()
    cells = {MASKED: {(0, 1, 3): 0.5}}
    with raises(InputError, option="set_attention", value=(1, 3)), what_if(model, set_attention=cells):
        model(ids(1, 6), ids(1, 5))
    with raises(TraceError, match="Another"), what_if(model), what_if(model):
        pass
    assert hooks(model) == 0


@torch.no_grad()
def test_several_cells_of_one_row():
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    with tracing(model) as before:
        model(*inputs)
    cells = {(1, 3, 2): 0.5, (1, 3, 4): 0.25, (0, 0, 0): 1.0}
    with what_if(model, set_attention={CROSS: cells}), tracing(model) as after:
        model(*inputs)
    a, b = before[f"{CROSS}.probabilities"].values[0], after[f"{CROSS}.probabilities"].values[0]
    assert (b[1, 3, 2], b[1, 3, 4]) == (0.5, 0.25)
    assert b[0, 0].tolist() == [1, 0, 0, 0, 0, 0]
    others = [0, 1, 3, 5]
    assert difference(b[1, 3, others] / 0.25, a[1, 3, others] / a[1, 3, others].sum()) <= 1e-5
    assert difference(b.sum(-1), torch.ones(2, 5)) <= 1e-6
    nothing_else = raises(InputError, option="set_attention", value=0)
    with nothing_else, what_if(model, set_attention={MASKED: {(0, 0, 0): 0.3}}):
        model(*inputs)


@torch.no_grad()
def test_unscaled_and_unmasked_by_hand():
    """Not by the code that computes them: softmax(q·kᵀ), over later keys too."""
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    with what_if(model, without=["scale", "look-ahead-mask"]), tracing(model) as trace:
        model(*inputs)
    q, k, v = (trace[f"{MASKED}.{name}"].values for name in "qkv")
    looks = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
    assert difference(trace[f"{MASKED}.probabilities"].values, looks) <= 1e-6
    assert difference(trace[f"{MASKED}.z"].values, torch.einsum("bhqk,bhkd->bhqd", looks, v)) <= 1e-6


@torch.no_grad()
def test_two_models_are_independent():
    one, other = translator(), translator()
    inputs = (ids(1, 6), ids(1, 5))
    plain = other(*inputs)
    with what_if(one, without=["scale", "norms"]), tracing(other) as trace:
        assert torch.equal(other(*inputs), plain)
        one(*inputs)
    assert max(trace.check().values()) <= 1e-5
    with what_if(one, without=["norms"]), what_if(other, without=["scale"]):
        one(*inputs)
        assert difference(other(*inputs), plain) > 1e-4


@torch.no_grad()
def test_a_trace_around_a_what_if_has_the_edited_values():
    model, inputs = translator(), (ids(1, 6), ids(1, 5))
    with tracing(model) as trace, what_if(model, remove_heads={SELF: [0]}, without=["feed-forward"]):
        logits = model(*inputs)
    assert trace[f"{SELF}.z"].values[:, 0].abs().max() == 0
    assert trace["encoder.layers.0.feed_forward.output"].values.abs().max() == 0
    assert torch.equal(trace["logits"].values, logits)
    assert max(trace.check().values()) <= 1e-5


def test_a_block_without_a_pass_is_an_error():
    with (
        raises(TraceError, match="did not run"),
        what_if(translator(), without=["norms"]),
    ):
        pass


def test_attention_under_dropout_is_not_edited():
    model = translator(attention_dropout=0.1).train()
    with raises(TraceError, match="dropout"), what_if(model, without=["scale"]):
        pass


UNCHECKED = """
from sightline import ModelConfig, build, what_if

stack = {"layers": 1, "heads": 2, "d_ff": 8}
model = build(ModelConfig(vocab_size=9, d_model=8, encoder=stack, decoder=stack))
path = "encoder.layers.0.self_attention"
for edits in ({"remove_heads": {path: 0}}, {"set_attention": {path: {(0, 1): 0.5}}}, {"remove_heads": {path: ["a"]}}):
    try:
        with what_if(model, **edits):
            pass
    except Exception as error:
        print(type(error).__name__, error.option, error.value)
"""


def test_invalid_types_without_checked_signatures():
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "TraceError remove_heads 0",
        "TraceError set_attention (0, 1)",
        "TraceError remove_heads a",
    ]
