"""Search with a decoder-only model finds what Hugging Face's GPT-2 generates: greedy and with beams, for prompts of
unequal length, wherever the decision is clear."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from sightline.config import SearchConfig
from sightline.interop.hugging_face import from_hugging_face
from sightline.search.driver import search
from sightline.search.types import Limits, Request
from sightline.special import END, PAD, START, UNKNOWN

VOCAB, NEW = 43, 9


def gpt2(seed, **more):
    """Return Hugging Face's GPT-2 with random weights, and the same as ours. Ids are taken as they are."""
    torch.manual_seed(seed)
    special = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
    sizes = {"vocab_size": VOCAB, "n_positions": 48, "n_embd": 21, "n_layer": 3, "n_head": 3, "n_inner": 37}
    theirs = GPT2LMHeadModel(GPT2Config(**{**sizes, **special, **more}))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return theirs.eval(), from_hugging_face(theirs)


@torch.no_grad()
def generated(theirs, prompt, beams, penalty):
    """Return the new tokens of Hugging Face's search, and the length-penalised score of the hypothesis."""
    answer = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW,
        num_beams=beams,
        do_sample=False,
        length_penalty=penalty,
        early_stopping=True,  # as `patience` = 1: stop when as many hypotheses as beams have ended
        bad_words_ids=[[PAD], [START], [UNKNOWN]],
    )
    ids = answer[0, len(prompt) :].tolist()
    return ids[: ids.index(END)] if END in ids else ids


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize(
    "more", [{}, {"n_embd": 14, "n_head": 2, "n_inner": 5, "activation_function": "relu"}], ids=str
)
def test_the_search_finds_what_hugging_face_generates(beams, penalty, more):
    """The prompts are one padded batch here and one call each there. Near ties are rare and counted."""
    same = total = 0
    for seed in range(4):
        theirs, ours = gpt2(seed, **more)
        draw = torch.Generator().manual_seed(seed)
        lengths = (1, 17, 4, 9, 2)
        prompts = [[START, *torch.randint(4, VOCAB, (n,), generator=draw).tolist()] for n in lengths]
        options = SearchConfig(beams=beams, length_penalty=penalty, patience=1)
        requests = [Request([], Limits(NEW, cut=True), prompt) for prompt in prompts]
        for prompt, (best,) in zip(prompts, search(ours, requests, options), strict=True):
            expected = generated(theirs, prompt, beams, penalty)
            total += 1
            if best.ids == expected:
                same += 1
                continue
            # Another hypothesis may only be found if it is as good as theirs, up to rounding.
            given = torch.tensor([[*prompt, *expected, END]])
            with torch.no_grad():
                logs = theirs(given).logits[0].log_softmax(-1)
            written = [*expected, END][:NEW]
            score = (
                sum(logs[len(prompt) - 1 + i, token].item() for i, token in enumerate(written))
                / len(written) ** penalty
            )
            assert best.score == pytest.approx(score, abs=1e-4), (best.ids, expected)
    assert same >= total - 1
