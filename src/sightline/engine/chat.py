"""The chat: a dialogue model that replies to a user. `sightline.text.dialogue` is the format of what it reads."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from sightline.config import SearchConfig
from sightline.engine.base import Encodings, Engine
from sightline.engine.results import Plan, Reply, Segment
from sightline.engine.writer import finish_reason, word_constraints, writing_options, writing_plan
from sightline.errors import InputError
from sightline.search.types import Hypothesis, Request
from sightline.special import START
from sightline.text.dialogue import DialogueFormat, Turn, alternating_turns
from sightline.text.stream import IncrementalText
from sightline.text.tokenizer import Tokenizer
from sightline.trace.trace import Trace

History = str | Sequence[str] | Sequence[Turn]
"""The turns of a dialogue up to now; the last is the user's. Strings alternate, and the user begins; one string is one
turn of the user."""


class Chat(Engine):
    """A trained dialogue model.

    A history that the model cannot read in one pass loses its oldest turns, but keeps a system turn at the beginning.
    """

    def __init__(
        self, models: Any, tokenizer: Tokenizer, *, history_in: Literal["source", "target"], **options: Any
    ) -> None:
        """`history_in`: source, if an encoder reads the history; target, if the decoder reads it before the reply.
        Other options are those of `Engine`."""
        super().__init__(models, tokenizer, **options)
        self.history_in = history_in
        self._begin = [START, *DialogueFormat(tokenizer).role_ids("assistant")]  # of a target, before the reply

    def reply(
        self,
        history: History,
        n: int = 1,
        *,
        max_tokens: int = 64,
        beams: int | None = None,
        sample: bool | None = None,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        **options: Any,
    ) -> list[Reply]:
        """Return `n` replies to the last turn of a dialogue, best first, each of at most `max_tokens` tokens.

        `history`: the turns up to now, as strings that alternate, the user first, or as `Turn`s; or one string. The
        other options are those of `Writer.complete`.
        """
        search = writing_options(n, beams, sample, options)
        return self.run(self.plan([history], search, max_tokens=max_tokens, forbid=forbid, require=require))[0]

    def stream(
        self, history: History, *, max_tokens: int = 64, forbid: Sequence[str] = (), **options: Any
    ) -> Iterator[str]:
        """Yield a reply piece by piece: a sample, or with `sample=False` greedy search."""
        search = writing_options(1, options.pop("beams", None), options.pop("sample", None), options)
        yield from self._stream(self.plan([history], search, max_tokens=max_tokens, forbid=forbid))

    def plan(
        self,
        histories: Sequence[History],
        options: SearchConfig,
        *,
        max_tokens: int = 64,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        log_probs: bool = True,
    ) -> Plan[list[list[Reply]]]:
        """Make the replies to dialogues ready."""
        encode = Encodings(self.tokenizer)
        read = encode if self.tokenizer.source is self.tokenizer else Encodings(self.tokenizer.source)
        constraints = word_constraints(encode, forbid, require)
        rows = [self._row(turns_of(history), read, max_tokens) for history in histories]
        return writing_plan(self, rows, options, max_tokens, constraints, self._reply, log_probs=log_probs)

    def trace(self, history: History | Reply, /, **options: Any) -> Trace:
        """Trace the model while it writes a reply: exactly the ids that were read and written. Without a reply, the
        model's own to a history, by greedy search; `options` are those of `reply`."""
        if not isinstance(history, Reply):
            history = self.reply(history, **{"beams": 1, **options})[0]
        (segment,) = history.segments
        if self.history_in == "source":
            return self._trace(source=segment.source_ids, target=[*self._begin, *segment.ids])
        return self._trace(target=[*segment.source_ids, *segment.ids])

    def incremental_text(self, plan: Plan[Any]) -> IncrementalText:
        """Return the text of a plan for one dialogue, to be built token by token."""
        return IncrementalText(self.tokenizer, plan.pieces)  # a turn is a text of its own

    def _row(self, turns: list[Turn], encode: Encodings, max_tokens: int) -> tuple[list[int], list[int]]:
        """Return what the encoder and the decoder read before the reply."""
        form = DialogueFormat(self.tokenizer.source, encode)
        if self.history_in == "source":
            return form.history(turns, self.max_positions), self._begin
        reserved = min(max_tokens, self.max_positions // 2)  # for the reply
        return [], form.prompt(turns, self.max_positions - reserved)

    def _reply(self, request: Request, found: Hypothesis) -> Reply:
        read = request.source if self.history_in == "source" else request.given
        segment = Segment(read, found.ids, found.log_probs, found.score, self.tokenizer)
        text = self.tokenizer.decode(found.ids)
        return Reply(text, found.score, [segment], finish_reason=finish_reason(request, found))


def turns_of(history: History) -> list[Turn]:
    """Return a history as turns. Raise an InputError if the last turn is not the user's."""
    texts = [history] if isinstance(history, str) else history
    if any(isinstance(turn, str) for turn in texts):
        if not all(isinstance(turn, str) for turn in texts):
            raise InputError.of("history", None, "must be all strings or all turns with a role.")
        turns = alternating_turns(cast("Sequence[str]", texts))
    else:
        turns = [*cast("Sequence[Turn]", texts)]
    if not turns or turns[-1].role != "user":
        last = f"the last of its {len(turns)} turns is the {turns[-1].role}'s" if turns else "it has no turns"
        raise InputError.of("history", len(turns), f"must end with a turn of the user, but {last}.")
    return turns
