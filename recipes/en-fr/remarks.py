"""Write short everyday remarks with a language model trained on Tatoeba, for a teacher to translate.

    sightline train --text remarks.txt --preset gpt-tiny --out remarks
    python recipes/en-fr/remarks.py remarks --sentences 900000 --without known.tsv --out remarks.en

Sentences of the files in --without (dev and test sets, sentences that have a translation) are left out.
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch
from torch import Tensor

from sightline.data.corpus import lines
from sightline.model.protocol import Inputs
from sightline.model.transformer import DecoderOnly
from sightline.model_folder import load_model, load_tokenizer
from sightline.special import END, START


@torch.inference_mode()
def write(model: DecoderOnly, rows: int, at_least: float) -> Tensor:
    """Rows of tokens as long as the model can, drawn among those at least `at_least` times as likely as the best. As in
    the rows that it has learnt from, one remark follows another, and the first and the last may be torn."""
    length = model.config.positions.max_length
    tokens = torch.full((rows, length + 1), START, device=model.classifier.weight.device)
    cache = model.start(Inputs(target=tokens[:, :0]), capacity=length)
    for at in range(length):
        p = model.step(tokens[:, at : at + 1], cache).float().softmax(-1)
        p[p < at_least * p.amax(-1, keepdim=True)] = 0
        tokens[:, at + 1] = torch.multinomial(p, 1)[:, 0]
    return tokens[:, 1:]


def whole(row: list[int]) -> list[list[int]]:
    """Return the tokens of the complete remarks in a row."""
    ends = [place for place, token in enumerate(row) if token == END]
    return [row[begin + 1 : end] for begin, end in itertools.pairwise(ends)]


def main() -> None:
    """Write `--sentences` different remarks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("model", type=Path, help="a language model")
    parser.add_argument("--sentences", type=int, default=900_000)
    parser.add_argument("--without", type=Path, action="append", default=[], help="a file whose sentences are left out")
    parser.add_argument("--rows", type=int, default=4096, help="rows in a batch, each of about two dozen remarks")
    parser.add_argument(
        "--at-least", type=float, default=0.02, help="least probability of a token, relative to the likeliest"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    known = {line.split("\t")[0] for file in options.without for line in lines(file)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_model(options.model, device), load_tokenizer(options.model)
    assert isinstance(model, DecoderOnly)
    model.eval().to(torch.bfloat16 if device == "cuda" else torch.float32)
    written = tries = 0
    with options.out.open("w", encoding="utf-8") as out:
        while written < options.sentences:
            rows = write(model, options.rows, options.at_least).tolist()
            for text in map(tokenizer.decode, itertools.chain.from_iterable(map(whole, rows))):
                tries += 1
                if text not in known and text.isprintable() and len(text.split()) > 1:
                    known.add(text)
                    written += 1
                    print(text, file=out)
            print(f"{written:,} new ones among {tries:,}", file=sys.stderr)


if __name__ == "__main__":
    main()
