"""Translate sentences with an ambiguous *it* by a teacher, and keep the answers with the right pronoun.

In "The animal didn't cross the street because it was too tired", *it* is the animal: *il*; too wide, it is the street:
*elle*. The built-in corpus knows which noun each of its pronouns stands for. The teacher is right about animals in a
quarter of the cases only (it likes the nearer noun), but a right answer is often among its eight best: that one is
kept. Sentences whose two nouns have the same gender in French are left out, and so is the riddle itself.

    python recipes/en-fr/riddles.py TEACHER --sentences 5000 --out riddles.tsv
"""

import argparse
import random
import re
from itertools import islice
from pathlib import Path

from sightline.data.builtin import ANIMALS, Pair, generate, riddle
from sightline.engine import load_translator

MASCULINE = [
    "chien",
    "chat",
    "cheval",
    "oiseau",
    "ours",
    "canard",
    "mouton",
    "âne",
    "cochon",
    "porc",
    "animal",
    "fleuve",
    "pont",
    "champ",
    "carré",
    "jardin",
    "pré",
    "village",
    "chemin",
    "sentier",
]
FEMININE = [
    "vache",
    "chèvre",
    "oie",
    "brebis",
    "rue",
    "rivière",
    "place",
    "prairie",
    "cour",
    "baie",
    "vallée",
    "pelouse",
]
GENDER = dict.fromkeys(MASCULINE, "il") | dict.fromkeys(FEMININE, "elle")
ANIMAL = {noun.english for noun in ANIMALS}


def solves(pair: Pair, french: str) -> bool:
    """Return whether a translation has two nouns of different gender, and the pronoun of the right one."""
    nouns = [GENDER[word] for word in re.findall(r"\w+", french.lower()) if word in GENDER]
    pronouns = re.findall(r"\b(?:qu'|car )(ils?|elles?)\b", french)
    if pair.antecedent is None or len(nouns) != 2 or nouns[0] == nouns[1] or len(pronouns) != 1:
        return False
    right = nouns[0] if pair.source_words[pair.antecedent] in ANIMAL else nouns[1]
    return pronouns[0] == right and "faisait" not in french  # il faisait trop sombre: it is nothing


def main() -> None:
    """Write pairs, half of them about animals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("teacher", help="an English-French model")
    parser.add_argument("--sentences", type=int, default=5000, help="how many are translated")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    unknown = {pair.source for pair in riddle()}
    # Nouns whose usual translations have two genders.
    women = {"cow", "goat", "street", "river", "square", "meadow", "yard", "bay", "valley"}
    pairs = [
        pair
        for pair in islice(generate("train", 100 * options.sentences, seed=11), 12 * options.sentences)
        if pair.antecedent is not None
        and pair.source not in unknown
        and len(women.intersection(pair.source_words)) == 1
    ]
    animals = [pair for pair in pairs if pair.source_words[pair.antecedent or 0] in ANIMAL]
    places = [pair for pair in pairs if pair.source_words[pair.antecedent or 0] not in ANIMAL]
    pairs = animals[: options.sentences * 2 // 3] + places[: options.sentences // 3]  # the harder ones more often
    random.Random(11).shuffle(pairs)
    teacher = load_translator(options.teacher, precision=options.precision)
    kept = {True: 0, False: 0}
    with options.out.open("w", encoding="utf-8") as out:
        for at in range(0, len(pairs), 256):
            some = pairs[at : at + 256]
            for pair, best in zip(
                some, teacher.translate([pair.source for pair in some], beams=8, nbest=8), strict=True
            ):
                answers = [answer.text for answer in (best, *best.alternatives)]
                if found := next((answer for answer in answers if solves(pair, answer)), None):
                    print(pair.source, found, sep="\t", file=out, flush=True)
                    kept[pair.source_words[pair.antecedent or 0] in ANIMAL] += 1
            print(f"{at + len(some)} of {len(pairs)}: {kept[True]} animals, {kept[False]} places", flush=True)


if __name__ == "__main__":
    main()
