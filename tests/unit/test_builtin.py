"""The built-in corpus: disjoint splits, alignments, agreement, and the riddle."""

import itertools

import pytest

from sightline.data.builtin import ANIMALS, OF_ANIMALS, OF_PLACES, PLACES, PRONOUN, SPLITS, VERBS, generate, riddle
from sightline.errors import InputError
from support import raises

NOUNS = {noun.english: noun for noun in (*ANIMALS, *PLACES)}
CORPUS = {split: list(generate(split, 4000)) for split in SPLITS}
EVERY = [pair for pairs in CORPUS.values() for pair in pairs]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SPLITS, 2)))
def test_splits_share_no_sentence(one, other):
    """Not even those of other seeds: a sentence's split depends on the sentence alone."""
    more = [*CORPUS[other], *generate(other, 4000, seed=7)]
    assert not {p.source for p in CORPUS[one]} & {p.source for p in more}
    assert not {p.target for p in CORPUS[one]} & {p.target for p in more}


def test_pairs_are_distinct_and_depend_on_the_seed():
    assert len({p.source for p in CORPUS["train"]}) == 4000
    assert list(generate("train", 50, seed=3)) == list(generate("train", 50, seed=3))
    assert list(generate("train", 50, seed=3)) != list(generate("train", 50, seed=4))


def test_unseen_split_has_new_combinations_of_nouns_and_verbs():
    def meetings(pairs):
        forms = {form: verb for verb in VERBS for form in verb.english}
        return {
            (noun.english, forms[word])
            for pair in pairs
            for noun in ANIMALS
            if noun.english in pair.source_words
            for word in pair.source_words
            if word in forms
        }

    seen, unseen = meetings(CORPUS["train"]), meetings(CORPUS["unseen"])
    assert not seen & unseen
    assert len(unseen) >= 15
    assert {noun for noun, _ in unseen} <= {noun for noun, _ in seen}  # each word is known by itself
    assert {verb for _, verb in unseen} <= {verb for _, verb in seen}
    assert not meetings(CORPUS["test"]) & unseen


def test_the_pronoun_agrees_with_its_antecedent_and_the_last_adjective_decides_which():
    with_pronoun = [pair for pair in EVERY if pair.pronoun is not None]
    assert len(with_pronoun) > 1000
    for pair in with_pronoun:
        noun = NOUNS[pair.source_words[pair.antecedent]]
        assert pair.source_words[pair.pronoun] == "it"
        assert pair.target_words[pair.target_pronoun] == PRONOUN[noun.gender]
        adjective = pair.source_words[-2]
        assert (noun in ANIMALS) == (adjective in OF_ANIMALS)
        assert (noun in PLACES) == (adjective in OF_PLACES)
    # No shortcut: for each gender of the animal, every pronoun occurs.
    seen = {
        (next(n.gender for n in ANIMALS if n.english in p.source_words), p.target_words[p.target_pronoun])
        for p in with_pronoun
    }
    assert len(seen) == 9


def test_aligned_words_are_translations_of_each_other():
    """Each English word has few German forms across the whole corpus, and nouns exactly their own."""
    forms: dict[str, set[str]] = {}
    for pair in EVERY:
        for i, j in pair.alignment:
            forms.setdefault(pair.source_words[i], set()).add(pair.target_words[j])
    for noun in NOUNS.values():
        assert forms[noun.english] == {noun.german}
    assert forms["the"] == {"der", "die", "das", "den"}
    assert forms["it"] == {"er", "sie", "es"}
    assert forms["old"] == {"alte", "alten"}
    assert forms["not"] == forms["didn't"] == {"nicht"}
    assert forms["crossed"] == {"überquerte", "überquert"}
    assert max(len(found) for found in forms.values()) <= 4
    for pair in EVERY:  # every word but a helping one has its counterpart
        for index, word in enumerate(pair.source_words):
            assert (word in ("did", "to")) != any(i == index for i, _ in pair.alignment), pair
        for index, word in enumerate(pair.target_words):
            assert (word == ",") != any(j == index for _, j in pair.alignment), pair


def test_word_order_differs():
    crossing = [
        pair for pair in CORPUS["train"] if any(i < k and j > m for i, j in pair.alignment for k, m in pair.alignment)
    ]
    assert len(crossing) / 4000 > 0.7


def test_the_riddle():
    tired, wide = riddle()
    assert tired.source == "The animal didn't cross the street because it was too tired."
    assert tired.target == "Das Tier überquerte die Straße nicht, weil es zu müde war."
    assert wide.source == "The animal didn't cross the street because it was too wide."
    assert wide.target == "Das Tier überquerte die Straße nicht, weil sie zu breit war."
    assert tired.source_words[tired.antecedent] == "animal"
    assert wide.source_words[wide.antecedent] == "street"
    assert not {tired.target, wide.target} & {pair.target for pair in EVERY}
    assert sum("animal" in p.source and "cross" in p.source for p in CORPUS["train"]) > 10  # all of its words are known


def test_invalid_split():
    with raises(InputError, option="split", value="valid"):
        list(generate("valid", 1))
