"""Replace the vocabulary of a trained model; new tokens start as the mean of their parts."""

import torch

from sightline.errors import InputError
from sightline.model.transformer import Model, build
from sightline.text.tokenizer import Tokenizer


@torch.no_grad()
def replace_vocabulary(model: Model, old: Tokenizer, new: Tokenizer) -> Model:
    """Return the model for another tokenizer. Tokens of both keep their rows; a new token starts with the mean of the
    rows of the old tokens that spell it."""
    if old.files == new.files:
        return model
    if old.source is not old:
        problem = "is a model with two vocabularies, and these cannot be replaced."
        raise InputError.of("init_from", None, f"{problem} Leave out `data.vocab_size` and `data.tokenizer`.")
    changed = build(model.config.model_copy(update={"vocab_size": new.size, "source_vocab_size": None}))
    known = {piece: i for i, piece in enumerate(old.all_pieces())}
    rows = []
    for piece in new.all_pieces():
        if piece in known:
            rows.append([known[piece]])
        else:
            rows.append(old.encode([piece.replace("▁", " ").strip() or piece])[0] or [known.get("<unk>", 3)])
    before = dict(model.named_parameters())
    for name, parameter in changed.named_parameters():
        weight = before[name]
        by_token = name.startswith("classifier.") or name.endswith("embedding.tokens.weight")
        parameter.copy_(torch.stack([weight[row].mean(0) for row in rows]) if by_token else weight)
    return changed
