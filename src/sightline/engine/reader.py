"""The reader: an encoder that reads a text and finds words for its masks (BERT)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.engine.base import Engine
from sightline.engine.results import Candidate, Filled, MaskedWord
from sightline.errors import InputError
from sightline.model.protocol import Inputs
from sightline.search.driver import TIE, by_size, padded
from sightline.special import END, START
from sightline.text.tokenizer import MASK_NAMES, MASKS
from sightline.trace.trace import Trace


class Reader(Engine):
    """A trained encoder."""

    def fill(self, texts: str | Sequence[str], n: int = 5) -> list[Filled]:
        """Return for each text the `n` likeliest tokens in the place of each mask, and the text with the best ones.

        A mask is written "[MASK]" or "<mask>": `reader.fill("The [MASK] sleeps.")`. If a text has several, each is
        predicted while the others are masks. Tokens can be parts of words.
        """
        if not 1 <= n <= self.tokenizer.size:
            problem = f"must be from 1 to {self.tokenizer.size}, the size of the vocabulary, got {n}."
            raise InputError.of("n", n, problem)
        some = [texts] if isinstance(texts, str) else texts
        different = list(dict.fromkeys(some))
        rows = self._encode(different)
        for text, (ids, places) in zip(different, rows, strict=True):
            if not places:
                raise InputError.of("text", text, f'has no mask. Write "{MASK_NAMES[0]}" in the place of a word.')
            if len(ids) > self.max_positions:
                problem = f"has {len(ids)} tokens with start and end, and the model has {self.max_positions} positions."
                raise InputError.of("text", len(ids), f"{problem} Shorten it.")
        likely = self._predict(rows, n)
        found = {text: self._filled(text, *row, best) for text, row, best in zip(different, rows, likely, strict=True)}
        return [found[text] for text in some]

    def trace(self, text: str | list[int] | Filled, /) -> Trace:
        """Trace the model on a text, which may have masks, on ids (with start and end) exactly as they are, or on the
        ids that it read for a result."""
        if isinstance(text, str):
            ((ids, _),) = self._encode([text])
            return self._trace(source=ids)
        return self._trace(source=text.ids if isinstance(text, Filled) else text)

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the ids that the model reads for each text, and the places of the masks in them."""
        found = self.tokenizer.encode_masked(texts)
        return [([START, *ids, END], [place + 1 for place in places]) for ids, places in found]

    def _predict(self, rows: Sequence[tuple[list[int], list[int]]], n: int) -> list[list[list[Candidate]]]:
        """Return the likeliest tokens for each mask of each row.

        As in a search (`sightline.search.driver`), a row in which the order of two tokens may depend on the other rows
        of its batch is computed again alone.
        """
        found: dict[int, list[list[Candidate]]] = {}
        for batch in by_size({i: len(ids) for i, (ids, _) in enumerate(rows)}, self.torch.batch_tokens):
            for i, scores in zip(batch, self._log_probs([rows[i] for i in batch]), strict=True):
                values, tokens = scores.topk(min(n + 1, scores.shape[1]))
                if len(batch) > 1 and bool((values.diff() > -TIE).any()):
                    values, tokens = self._log_probs([rows[i]])[0].topk(n)
                found[i] = [
                    [Candidate(*one) for one in zip(self.tokenizer.pieces(ids), ids, probabilities, strict=True)][:n]
                    for ids, probabilities in zip(tokens.tolist(), values.exp().tolist(), strict=True)
                ]
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def _log_probs(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[Float[Tensor, "masks vocab"]]:
        """Return the log-probabilities of all tokens at each mask of each row."""
        source, layout = padded([ids for ids, _ in rows], self.model.device)
        hidden = self.model.hidden(Inputs(source, source_layout=layout))
        at_masks = [one[places] for one, (_, places) in zip(hidden, rows, strict=True)]
        return [self.model.classifier(each).float().log_softmax(-1) for each in at_masks]

    def _filled(self, text: str, ids: list[int], places: list[int], likely: list[list[Candidate]]) -> Filled:
        """Return the result for a text. All that is not a mask stays as the user has written it."""
        whole, *rest = MASKS.split(text)
        for (best, *_), after in zip(likely, rest, strict=True):
            word = self.tokenizer.text_after_word(best.id)
            begins_word = word.startswith(" ") or not whole.strip()
            whole = (whole + word.lstrip() if begins_word else whole.rstrip() + word) + after
        masks = [MaskedWord(place, candidates) for place, candidates in zip(places, likely, strict=True)]
        return Filled(whole, ids, masks, self.tokenizer)
