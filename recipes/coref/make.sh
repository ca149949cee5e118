#!/bin/bash
# Make the shipped model `coref`: a translator of the built-in corpus that solves the riddle of "it", and the states it
# went through, from noise to skill. Needs a minute or two on two cores, and nothing else. The same machine makes the
# same model again.
#
#     bash recipes/coref/make.sh WORK_FOLDER
set -euo pipefail
here=$(dirname "$0")
work=${1:?name a folder to work in}
mkdir -p "$work"

python - "$work" <<'PYTHON'
import sys
from pathlib import Path

from sightline.data.builtin import generate
from sightline.evaluate.align import gold_of
from sightline.search.align import write_pharaoh

work = Path(sys.argv[1])
for split, count in (("train", 30_000), ("dev", 200), ("test", 1000)):
    pairs = list(generate(split, count))
    (work / f"{split}.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")
    if split == "dev":
        (work / "dev.en").write_text("".join(f"{pair.source}\n" for pair in pairs), "utf-8")
        (work / "dev.de").write_text("".join(f"{pair.target}\n" for pair in pairs), "utf-8")
        (work / "dev.links").write_text("".join(f"{write_pharaoh(gold_of(pair))}\n" for pair in pairs), "utf-8")
PYTHON

if [ -d "$work/coref/checkpoints" ]; then
  sightline train --out "$work/coref" --resume
else
  sightline train --pairs "$work/train.tsv" --valid "$work/dev.tsv" --out "$work/coref" --preset tiny --device cpu \
    --set model.encoder.layers=2 --set model.decoder.layers=2 --set model.dropout=0.05 --set data.vocab_size=1200 \
    --set train.steps=800 --set train.batch_tokens=1024 --set train.learning_rate=0.007 --set train.warmup=50 \
    --set train.smoothing=0.0 --set train.ema=0.98 --set train.validate_every=40 --set train.report_every=40 \
    --set train.keep_tested=true
fi
sightline align "$work/coref" --source "$work/dev.en" --target "$work/dev.de" --gold "$work/dev.links" --choose
python "$here/../ship.py" "$work/coref" coref --states 0 40 80 120 160
python "$here/stored.py"
