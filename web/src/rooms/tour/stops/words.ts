/** The first stops: from a text to the vectors that enter the encoder. */

import { attentions } from "../../../trace/attention";
import { row, type Trace } from "../../../trace/trace";
import { cosine, length, total } from "../maths";
import { leastSure } from "./writing";
import { answerOf, explains, hasLetters, inReader, labelled, logProbs, select, type Live, type Stop } from "../stop";

/** The tokens of the translation with letters, by their position among its choices. */
const choices = (trace: Trace) => labelled(trace.words("target").slice(1));

export const result: Stop = {
  id: "result",
  task: "translate",
  room: "translate",
  prediction: { kind: "choose", options: ({ trace }) => choices(trace).map(({ label }) => label) },
  async reveal({ trace }) {
    const log_probs = logProbs(trace);
    const least = leastSure(trace);
    return {
      facts: [
        { key: "translation", label: "Translation", value: answerOf(trace).target! },
        { key: "first", label: "Probability of its first token", value: Math.exp(log_probs[0]), share: true },
        { key: "least", label: `Probability of “${least.label}”, the least sure choice`, value: Math.exp(log_probs[least.at]), share: true },
        { key: "whole", label: "Probability of the whole translation", value: Math.exp(total(log_probs)), share: true },
      ],
      answer: least.label,
      holds: true,
    };
  },
  done: ({ view, entry }) => view.target !== "" && view.target !== entry.target,
};

/** The number of heads of all attentions. */
export const headsOf = (trace: Trace) => total(attentions(trace).map(({ path }) => trace.shape(`${path}.probabilities`)[0]));

export const inside: Stop = {
  id: "inside-the-box",
  task: "translate",
  room: "glass",
  prediction: { kind: "type" },
  async reveal({ app, trace }) {
    const [reader, writer] = trace.stacks;
    const heads = headsOf(trace);
    return {
      facts: [
        { key: "reading", label: "Layers of the encoder, with one attention each", value: reader.layers },
        { key: "writing", label: "Layers of the decoder, with two attentions each", value: writer.layers },
        { key: "per-attention", label: "Heads of an attention", value: trace.shape(`${attentions(trace)[0].path}.probabilities`)[0] },
        { key: "heads", label: "Heads of the whole model", value: heads },
        { key: "parameters", label: "Learned numbers (parameters)", value: app.model!.parameters },
      ],
      answer: heads,
      holds: true,
    };
  },
  done: ({ view }) => view.step >= 0,
};

export const tokens: Stop = {
  id: "tokens",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: inReader(trace, "embedding") }),
  prediction: { kind: "type" },
  async reveal({ view, trace }) {
    const { source_vocab_size, vocab_size } = trace.config;
    const words = trace.words("source");
    return {
      facts: [
        { key: "words", label: "Words between spaces", value: view.text.trim().split(/\s+/).length },
        { key: "tokens", label: "Tokens", value: words.length },
        { key: "ids", label: "Their ids", value: trace.manifest.ids.source!.join(" ") },
        { key: "vocabulary", label: "Entries of the vocabulary", value: source_vocab_size ?? vocab_size },
      ],
      answer: words.length,
      holds: true,
    };
  },
  /** A new text with a word of several tokens. */
  done: ({ view, trace, entry }) =>
    view.text !== entry.text && trace.words("source").some((token, at) => at > 0 && hasLetters(token) && !/^[▁Ġ]/.test(token)),
};

export const embeddings: Stop = {
  id: "embeddings",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: inReader(trace, "embedding"), ...select(trace) }),
  mark: (live) => `The marked word is “${live.marked}”.`,
  prediction: { kind: "type" },
  async reveal(live) {
    const { trace, focus } = live;
    const path = inReader(trace, "embedding");
    const scaled = trace.has(`${path}.scaled`) && trace.config.scale_embedding;
    const placed = trace.has(`${path}.positions`);
    const [rows, enlarged, positions] = await live.tensors(
      `${path}.tokens`,
      `${path}.${scaled ? "scaled" : "tokens"}`,
      `${path}.${placed ? "positions" : "tokens"}`,
    );
    const near = nearest(live, rows.shape[0], (at) => row(rows, at));
    return {
      facts: [
        { key: "width", label: "Numbers in one row (d_model)", value: rows.shape[1] },
        { key: "number", label: `First number of the row of “${live.marked}”`, value: row(rows, focus)[0], node: { name: `${path}.tokens`, at: [focus, 0] } },
        { key: "length", label: `Length of the row of “${live.marked}”`, value: length(row(rows, focus)) },
        ...(scaled ? [{ key: "scaled", label: "Its length times √d_model", value: length(row(enlarged, focus)) }] : []),
        ...(placed ? [{ key: "position", label: "Length of its position", value: length(row(positions, focus)) }] : []),
        ...near,
      ],
      answer: rows.shape[1],
      holds: true,
    };
  },
  depends: (live) => String(live.focus),
  done: explains(/\.embedding\./),
};

/** The two different tokens with the most similar rows. */
function nearest(live: Live, count: number, rowAt: (at: number) => Float32Array) {
  const ids = live.trace.manifest.ids.source!;
  let best = { pair: "", cosine: -Infinity };
  for (let i = 0; i < count; i++)
    for (let j = 0; j < i; j++) {
      if (ids[i] === ids[j]) continue;
      const found = cosine(rowAt(i), rowAt(j));
      if (found > best.cosine) best = { pair: `“${live.word(j)}” and “${live.word(i)}”`, cosine: found };
    }
  return best.pair ? [{ key: "nearest", label: `Largest cosine of two rows: ${best.pair}`, value: best.cosine }] : [];
}
