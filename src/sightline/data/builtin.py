"""The built-in corpus: English and German sentences from a small grammar, whose translation needs attention.

The word order of the two languages differs (verbs at the end, after the object, before the subject), articles and
adjectives agree with nouns, negation moves, and *it* is er, sie or es, depending on its antecedent:

    The animal didn't cross the street because it was too tired.   Das Tier ..., weil es zu müde war.
    The animal didn't cross the street because it was too wide.    Das Tier ..., weil sie zu breit war.

Only the last adjective decides which noun that is. Each pair has its gold word alignment and, with a pronoun, its gold
antecedent. Each sentence belongs to one split for all seeds. Some combinations of nouns and verbs occur only in the
split `unseen`, which tests generalisation to new combinations of known words.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sightline.errors import InputError

Split = Literal["train", "dev", "test", "unseen"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test", "unseen")


class Noun(NamedTuple):
    """An English noun, its German translation, and its gender: m, f or n."""

    english: str
    german: str
    gender: str


class Verb(NamedTuple):
    """Infinitive, past and participle in both languages."""

    english: tuple[str, str, str]
    german: tuple[str, str, str]


def _nouns(table: str) -> list[Noun]:
    return [Noun(*noun.split()) for noun in table.split(",")]


ANIMALS = _nouns(
    """
    animal Tier n, dog Hund m, cat Katze f, horse Pferd n, bird Vogel m, cow Kuh f,
    bear Bär m, duck Ente f, sheep Schaf n, goat Ziege f, donkey Esel m, pig Schwein n
    """
)
PLACES = _nouns(
    """
    street Straße f, river Fluss m, bridge Brücke f, field Feld n, square Platz m, garden Garten m,
    meadow Wiese f, village Dorf n, yard Hof m, path Weg m, bay Bucht f, valley Tal n
    """
)
VERBS = [
    Verb(("cross", "crossed", "crossed"), ("überqueren", "überquerte", "überquert")),
    Verb(("leave", "left", "left"), ("verlassen", "verließ", "verlassen")),
    Verb(("see", "saw", "seen"), ("sehen", "sah", "gesehen")),
    Verb(("find", "found", "found"), ("finden", "fand", "gefunden")),
    Verb(("avoid", "avoided", "avoided"), ("meiden", "mied", "gemieden")),
    Verb(("love", "loved", "loved"), ("lieben", "liebte", "geliebt")),
    Verb(("reach", "reached", "reached"), ("erreichen", "erreichte", "erreicht")),
    Verb(("watch", "watched", "watched"), ("beobachten", "beobachtete", "beobachtet")),
    Verb(("fear", "feared", "feared"), ("fürchten", "fürchtete", "gefürchtet")),
    Verb(("guard", "guarded", "guarded"), ("bewachen", "bewachte", "bewacht")),
]
# Adjectives before a noun, in German without ending; after "too", adjectives for animals only or for places only.
ATTRIBUTES = {"old": "alt", "small": "klein", "big": "groß", "brown": "braun", "white": "weiß", "quiet": "still"}
OF_ANIMALS = {"tired": "müde", "hungry": "hungrig", "sick": "krank", "lazy": "faul", "slow": "langsam", "shy": "scheu"}
OF_PLACES = {"wide": "breit", "deep": "tief", "dark": "dunkel", "wet": "nass", "narrow": "schmal", "steep": "steil"}
ADVERBS = {"yesterday": "gestern", "today": "heute", "then": "dann", "there": "dort"}
MODALS = {"wanted to": "wollte", "could": "konnte", "had to": "musste"}

SUBJECT_ARTICLE = {"m": "der", "f": "die", "n": "das"}
OBJECT_ARTICLE = {"m": "den", "f": "die", "n": "das"}
PRONOUN = {"m": "er", "f": "sie", "n": "es"}


class Pair(NamedTuple):
    """A sentence and its translation, with annotations."""

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: frozenset[tuple[int, int]]
    """Links between positions of source words and target words."""
    pronoun: int | None
    """Position of "it" in the source words, if any."""
    antecedent: int | None
    """Position of its antecedent."""

    @property
    def target_pronoun(self) -> int | None:
        """Position of the pronoun in the target words."""
        return next((j for i, j in self.alignment if i == self.pronoun), None)


class Plan(NamedTuple):
    """The choices for a sentence."""

    animal: Noun
    place: Noun
    verb: Verb
    tense: Literal["past", "perfect", "wanted to", "could", "had to"] = "past"
    negation: Literal["", "n't", "not"] = ""
    adverb: str = ""
    attributes: tuple[str, str] = ("", "")  # of the animal and of the place
    reason: str = ""  # the adjective after "because it was too"


Word = tuple[str, str]
"""A word and its role. Words of both languages with the same role are aligned."""


def generate(split: Split, count: int, seed: int = 0) -> Iterator[Pair]:
    """Yield `count` different pairs of a split. The same seed gives the same pairs."""
    if split not in SPLITS:
        raise InputError.of("split", split, f"must be one of {', '.join(SPLITS)}, got {split!r}.")
    generator = random.Random(f"{split} {seed}")  # noqa: S311
    riddles = {pair.target for pair in riddle()}
    seen: set[str] = set()
    tries = 0
    while len(seen) < count:
        tries += 1
        if tries > 1000 * (count + 100):
            raise InputError.of(
                "count", count, f"is greater than the number of different sentences in the split {split}: {count}."
            )
        plan = _draw(generator)
        pair = _compose(plan)
        if _split(plan, pair) == split and pair.target not in riddles and pair.source not in seen:
            seen.add(pair.source)
            yield pair


def riddle() -> tuple[Pair, Pair]:
    """Return the animal that was too tired and the street that was too wide, which are in no split."""
    plan = Plan(ANIMALS[0], PLACES[0], VERBS[0], negation="n't")
    return _compose(plan._replace(reason="tired")), _compose(plan._replace(reason="wide"))


def _split(plan: Plan, pair: Pair) -> Split:
    """Return the split of a pair by its German sentence, so that both English versions are in the same split."""
    if (ANIMALS.index(plan.animal) + VERBS.index(plan.verb)) % 7 == 3:
        return "unseen"
    place = int.from_bytes(hashlib.blake2b(pair.target.encode(), digest_size=2).digest()) % 20
    return "dev" if place == 0 else "test" if place == 1 else "train"


def _draw(generator: random.Random) -> Plan:
    negated = generator.random() < 0.5
    tense = generator.choice(
        ["past", "past", "perfect", "could" if negated else generator.choice(["wanted to", "could", "had to"])]
    )
    negation = "" if not negated else generator.choice(["n't", "not"]) if tense == "past" else "not"
    reasons = generator.choice([OF_ANIMALS, OF_PLACES])
    return Plan(
        generator.choice(ANIMALS),
        generator.choice(PLACES),
        generator.choice(VERBS),
        tense,  # type: ignore[arg-type]
        negation,  # type: ignore[arg-type]
        generator.choice(list(ADVERBS)) if generator.random() < 0.3 else "",
        (_attribute(generator), _attribute(generator)),
        generator.choice(list(reasons)) if generator.random() < 0.6 else "",
    )


def _attribute(generator: random.Random) -> str:
    return generator.choice(list(ATTRIBUTES)) if generator.random() < 0.3 else ""


def _compose(plan: Plan) -> Pair:
    """Return the sentence in both languages."""
    animal, place = plan.animal, plan.place
    ending = "en" if place.gender == "m" else "e"
    subject = _noun_phrase(animal, "subject", plan.attributes[0], SUBJECT_ARTICLE[animal.gender], "e")
    object_ = _noun_phrase(place, "object", plan.attributes[1], OBJECT_ARTICLE[place.gender], ending)
    english, finite, last = _verb_phrase(plan)
    source = [*subject[0], *english, *object_[0]]
    rest = [*object_[1], *([("nicht", "not")] if plan.negation else []), *last]
    if plan.adverb:  # the German verb is second, so the subject follows it
        source = [(plan.adverb, "adverb"), *source]
        target = [(ADVERBS[plan.adverb], "adverb"), finite, *subject[1], *rest]
    else:
        target = [*subject[1], finite, *rest]
    antecedent = None
    if plan.reason:
        noun, antecedent = (animal, "subject") if plan.reason in OF_ANIMALS else (place, "object")
        source += [("because", "because"), ("it", "it"), ("was", "was"), ("too", "too"), (plan.reason, "reason")]
        target += [(",", ""), ("weil", "because"), (PRONOUN[noun.gender], "it"), ("zu", "too")]
        target += [({**OF_ANIMALS, **OF_PLACES}[plan.reason], "reason"), ("war", "was")]
    return _pair([*source, (".", ".")], [*target, (".", ".")], antecedent)


def _noun_phrase(noun: Noun, role: str, attribute: str, article: str, ending: str) -> tuple[list[Word], list[Word]]:
    """Return "the (old) dog" and "der (alte) Hund"."""
    english, german = [("the", f"{role} article")], [(article, f"{role} article")]
    if attribute:
        english.append((attribute, f"{role} attribute"))
        german.append((ATTRIBUTES[attribute] + ending, f"{role} attribute"))
    return [*english, (noun.english, role)], [*german, (noun.german, role)]


def _verb_phrase(plan: Plan) -> tuple[list[Word], Word, list[Word]]:
    """Return the English verb with auxiliaries, the finite German verb, and the end of the German clause."""
    (infinitive, past, participle), german = plan.verb.english, plan.verb.german
    if plan.tense == "past":
        helper = {"": [], "n't": [("didn't", "not")], "not": [("did", ""), ("not", "not")]}[plan.negation]
        return [*helper, (infinitive if helper else past, "verb")], (german[1], "verb"), []
    negation = [("not", "not")] if plan.negation else []
    if plan.tense == "perfect":
        return [("has", "helper"), *negation, (participle, "verb")], ("hat", "helper"), [(german[2], "verb")]
    helper = [(word, "" if word == "to" else "helper") for word in plan.tense.split()]
    return [*helper, *negation, (infinitive, "verb")], (MODALS[plan.tense], "helper"), [(german[0], "verb")]


def _pair(source: list[Word], target: list[Word], antecedent: str | None) -> Pair:
    alignment = frozenset(
        (i, j) for i, (_, here) in enumerate(source) for j, (_, there) in enumerate(target) if here and here == there
    )
    parts = [part for _, part in source]
    english, german = (tuple(word for word, _ in side) for side in (source, target))
    return Pair(
        source=_write(english),
        target=_write(german),
        source_words=english,
        target_words=german,
        alignment=alignment,
        pronoun=parts.index("it") if antecedent else None,
        antecedent=parts.index(antecedent) if antecedent else None,
    )


def _write(words: tuple[str, ...]) -> str:
    """Join words to a sentence: capital letter first, no space before punctuation."""
    text = " ".join(words).replace(" ,", ",").replace(" .", ".")
    return text[0].upper() + text[1:]
