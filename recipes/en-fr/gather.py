"""Collect the training pairs of the student that are not in the corpora: sentences with translations by the teacher,
once each; riddles four times, because they are few; and some pairs again in lower case, in upper case, or with French
as the source.

    python recipes/en-fr/gather.py --pairs stories.en stories.fr --riddles riddles.tsv --without known.tsv \
        --out more.tsv

Left out: sentences of the files in --without (dev and test sets, and other training data), the riddle of the animal and
the street itself, and pairs with one side far longer than the other.
"""

import argparse
import random
from pathlib import Path

from sightline.data.builtin import riddle
from sightline.data.corpus import lines

TIMES = 4


def alike(one: int, other: int) -> bool:
    """Return whether both sides have similar lengths."""
    return max(one, other) <= 3 * min(one, other) + 20


def untidy(pair: tuple[str, str], dice: random.Random) -> tuple[str, str] | None:
    """Return a few in a hundred pairs in another spelling."""
    (english, french), chance = pair, dice.random()
    if chance < 0.02:
        return english.lower().rstrip(".!?"), french
    if chance < 0.03:
        return english.upper(), french.upper()
    return (french, french) if chance < 0.04 else None


def main() -> None:
    """Write the pairs in a random order that is the same each time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pairs", type=Path, nargs=2, action="append", default=[], help="English, and its translation")
    parser.add_argument("--riddles", type=Path, required=True)
    parser.add_argument("--without", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = {line.split("\t")[0] for file in options.without for line in lines(file)}
    known |= {pair.source for pair in riddle()}
    found: dict[str, str] = {}
    for source, target in options.pairs:
        for english, french in zip(lines(source), lines(target), strict=True):
            if english not in known and french and alike(len(english), len(french)):
                found.setdefault(english, french)
    riddles = [(line.split("\t")[0], line.split("\t")[1]) for line in lines(options.riddles)]
    dice = random.Random(1)
    others = [other for pair in found.items() if (other := untidy(pair, dice))]
    pairs = [*found.items(), *others, *riddles * TIMES]
    dice.shuffle(pairs)
    options.out.write_text("".join(f"{english}\t{french}\n" for english, french in pairs), "utf-8")
    print(f"{options.out}: {len(pairs):,} pairs")


if __name__ == "__main__":
    main()
