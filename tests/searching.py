"""Requests for small models with and without an encoder, and their scores by one pass over the whole text."""

import torch
from torch.nn.utils.rnn import pad_sequence

from sightline.engine.translator import translation_request
from sightline.model.protocol import Inputs
from sightline.model.transformer import build
from sightline.search.driver import search
from sightline.search.types import NO_CONSTRAINTS, Request
from sightline.special import END, START
from support import VARIANTS, config, random_weights

__all__ = ["ARCHITECTURES", "VARIANTS", "all_scores", "find", "log_probs", "model_of", "request_of"]

ARCHITECTURES = ["encoder-decoder", "decoder-only"]


def model_of(architecture, variant="paper", seed=0, ending=0.0, **more):
    """Return a model that ends its texts now and then."""
    torch.manual_seed(seed)
    options = {"classifier_bias": True, "architecture": architecture, **more}
    model = random_weights(build(config(variant, **options)))
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        model.classifier.bias[END] += ending
    return model


def request_of(model, text, options, constraints=NO_CONSTRAINTS, limits=None):
    """Return the request to translate a text (as ids), or to continue it: with an end at the limit in both cases."""
    request = translation_request(text, options, model.config, constraints)
    if model.config.architecture == "encoder-decoder":
        return request._replace(limits=limits or request.limits)
    return Request([], limits or request.limits, [START, *text], constraints)


def find(model, texts, options, constraints=None, limits=None, **more):
    """Return the best answers to each text."""
    constraints = constraints or [NO_CONSTRAINTS] * len(texts)
    both = zip(texts, constraints, strict=True)
    return search(model, [request_of(model, text, options, own, limits) for text, own in both], options, **more)


@torch.no_grad()
def log_probs(model, text, target):
    """Return the log-probabilities of each next token of an answer, by one pass over the whole."""
    if model.config.architecture == "encoder-decoder":
        inputs = Inputs(torch.tensor([[*text, END]]), torch.tensor([[START, *target]]))
        return model.classifier(model.hidden(inputs))[0].log_softmax(-1)
    inputs = Inputs(target=torch.tensor([[START, *text, *target]]))
    return model.classifier(model.hidden(inputs))[0, len(text) :].log_softmax(-1)


@torch.no_grad()
def all_scores(model, text, answers, penalty):
    """Return the score of each answer with its end, by one pass over all of them."""
    given = [START] if model.config.architecture == "encoder-decoder" else [START, *text]
    rows = [torch.tensor([*given, *answer, END]) for answer in answers]
    target = pad_sequence(rows, batch_first=True)
    source = torch.tensor([[*text, END]]).expand(len(rows), -1)
    inputs = Inputs(source if len(given) == 1 else None, target[:, :-1])
    scores = model.classifier(model.hidden(inputs)).log_softmax(-1).gather(2, target[:, 1:, None])[:, :, 0]
    return [
        scores[i, len(given) - 1 : len(row) - 1].sum().item() / (len(row) - len(given)) ** penalty
        for i, row in enumerate(rows)
    ]
