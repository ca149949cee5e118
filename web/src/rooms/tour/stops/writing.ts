/** The stops of the decoder: order, heads, the way up, the mask, cross-attention, and how words are chosen. */

import { searchOf, type View } from "../../../app/view.svelte";
import { effective } from "../../../app/search";
import { derive } from "../../../trace/lineage";
import { at, row, type Trace } from "../../../trace/trace";
import { cosine, dot, largest, softmax, total } from "../maths";
import { answerOf, explains, inReader, inWriter, isSpecial, labelled, logProbs, type Fact, type Live, type Stop } from "../stop";

const NONE = { at: 0, label: "" };

/** The word of the translation that the model was least sure of, and the position that predicts it. */
export function leastSure(trace: Trace): { at: number; label: string } {
  const found = labelled(trace.words("target").slice(1));
  const logs = logProbs(trace);
  return found[largest(found.map((one) => -(logs[one.at] ?? 0)))] ?? NONE;
}

const lastCross = (trace: Trace) => inWriter(trace, `layers.${trace.top.layers - 1}.cross_attention`);

/** The attention whose heads are removed: the open one, or the last cross-attention. */
function removed({ view, trace }: Live): string {
  if (trace.has(`${view.open}.probabilities`)) return view.open;
  return lastCross(trace);
}

export const heads: Stop = {
  id: "heads",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: lastCross(trace) }),
  mark: (live) => `The marked attention is the ${removed(live).includes("cross") ? "cross-attention" : "self-attention"} of ${removed(live).split(".")[0]} layer ${Number(removed(live).split(".")[2]) + 1}.`,
  prediction: {
    kind: "choose",
    options: (live) => Array.from({ length: live.trace.shape(`${removed(live)}.probabilities`)[0] }, (_, head) => `Head ${head + 1}`),
  },
  async reveal(live) {
    const path = removed(live);
    const [count, , d_k] = live.trace.shape(`${path}.q`);
    const scores = await live.scores([null, ...Array.from({ length: count }, (_, head) => ({ remove_heads: { [path]: [head] } }))]);
    const drops = scores.slice(1).map((score) => score - scores[0]);
    const worst = largest(drops.map((drop) => -drop));
    return {
      facts: [
        { key: "whole", label: "Log-probability of the translation with all heads", value: scores[0] },
        ...drops.map((drop, head) => ({ key: `drop-${head}`, label: `Change without head ${head + 1}`, value: drop })),
        { key: "concat", label: "Width of all heads, concatenated", value: count * d_k },
      ],
      answer: `Head ${worst + 1}`,
      holds: true,
    };
  },
  depends: removed,
  done: ({ view }) => view.changes.includes("remove@"),
};

const layerName = (layer: number) => (layer ? `After layer ${layer}` : "After the embedding");

/** The position of the decoder that a stop shows: of the selected word. */
function position({ view, trace }: Live): number {
  const found = /^t(\d+)$/.exec(view.word);
  return found ? Math.min(Number(found[1]), trace.words("target").length - 1) : leastSure(trace).at;
}

export const layers: Stop = {
  id: "layer-by-layer",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: "output", word: `t${leastSure(trace).at}` }),
  mark: (live) => `The decoder has read “${live.target(position(live))}” and writes the next word.`,
  prediction: {
    kind: "choose",
    options: ({ trace }) => Array.from({ length: trace.top.layers + 1 }, (_, layer) => layerName(layer)),
  },
  async reveal(live) {
    const { app, trace } = live;
    const p = position(live);
    const path = `/v1/trace/${encodeURIComponent(answerOf(trace).id)}/lens?position=${p}&count=1`;
    const lens: { layers: { id: number; token: string; probability: number }[][] } = await app.connection.read(
      app.connection.send(path),
      (answer) => answer.json(),
    );
    const tops = lens.layers.map(([top]) => top);
    const right = tops[tops.length - 1].id;
    const first = tops.findIndex((_, i) => tops.slice(i).every((top) => top.id === right));
    const names = tops.slice(1).map((_, i) => inWriter(trace, `layers.${i}.feed_forward_residual.output`));
    const [start, ...outputs] = (await live.tensors(inWriter(trace, "embedding.output"), ...names)).map((one) => row(one, p));
    const facts = tops.flatMap((top, i): Fact[] => [
      { key: `lens-${i}`, label: `${layerName(i)}: “${top.token.replace(/^[▁Ġ]/, "")}”`, value: top.probability, share: true },
      ...(i ? [{ key: `cosine-${i}`, label: "Cosine with its embedding", value: cosine(start, outputs[i - 1]) }] : []),
    ]);
    return { facts, answer: layerName(first), holds: true };
  },
  depends: (live) => String(position(live)),
  done: ({ view, entry }) => /^t\d/.test(view.word) && view.word !== entry.word,
};

const masked = (trace: Trace) => inWriter(trace, "layers.0.self_attention");

export const mask: Stop = {
  id: "start-and-mask",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: masked(trace) }),
  prediction: { kind: "choose" },
  async reveal(live) {
    const { trace } = live;
    const [base, changed] = await Promise.all([live.traced(null), live.traced({ without: ["look-ahead-mask"] })]);
    const nats = (of: Trace) => -total(logProbs(of)) / logProbs(of).length;
    const [weights] = await base.tensors([`${masked(trace)}.probabilities`]);
    const length = trace.words("target").length;
    let future = 0;
    for (let h = 0; h < weights.shape[0]; h++)
      for (let q = 0; q < length; q++) for (let k = q + 1; k < length; k++) future = Math.max(future, at(weights, h, q, k));
    const [before, after] = [nats(base), nats(changed)];
    return {
      facts: [
        { key: "start", label: "The first token that the decoder reads", value: live.target(0) },
        { key: "cells", label: "Masked scores of each head (−∞)", value: (length * (length - 1)) / 2 },
        { key: "future", label: "Largest weight of a later word, with the mask", value: future },
        { key: "with", label: "Nats per token with the mask", value: before },
        { key: "without", label: "Nats per token without the mask", value: after },
      ],
      answer: after < before - 1e-6 ? 0 : after > before + 1e-6 ? 2 : 1,
      holds: after > before + 1e-6,
    };
  },
  done: ({ view }) => /(^|,)look-ahead-mask/.test(view.changes),
};

export const cross: Stop = {
  id: "cross-attention",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: inWriter(trace, "layers.0.cross_attention") }),
  prediction: { kind: "choose" },
  async reveal(live) {
    const { trace } = live;
    const path = inWriter(trace, "layers.0.cross_attention");
    const [source, target] = (["source", "target"] as const).map((side) => trace.words(side).length);
    const rows = (part: string) => trace.shape(`${path}.${part}`)[1];
    const again = inWriter(trace, "layers.1.cross_attention.k");
    const [k, other] = await live.tensors(`${path}.k`, trace.has(again) ? again : `${path}.k`);
    const made = await derive(trace, { name: `${path}.k`, at: [0, 0, 0] });
    const products = made.kind === "dot" ? total([...made.rows.map((one) => one[2].value), ...made.also.map((one) => one.value)]) : NaN;
    const word = live.word(0);
    return {
      facts: [
        { key: "source", label: "Tokens of your sentence", value: source },
        { key: "target", label: "Tokens of the translation, with the start", value: target },
        { key: "q", label: "Rows of Q", value: rows("q") },
        { key: "k", label: "Rows of K", value: rows("k") },
        { key: "v", label: "Rows of V", value: rows("v") },
        { key: "first", label: `First number of k of “${word}” in decoder layer 1`, value: at(k, 0, 0, 0), node: { name: `${path}.k`, at: [0, 0, 0] } },
        ...(Number.isNaN(products) ? [] : [{ key: "product", label: `The encoder's output for “${word}” times W^K of this layer`, value: products }]),
        ...(trace.has(again) ? [{ key: "second", label: "The same number of k in decoder layer 2", value: at(other, 0, 0, 0), node: { name: again, at: [0, 0, 0] } }] : []),
      ],
      answer: 1,
      holds: source !== target && rows("q") === target && rows("k") === source,
    };
  },
  done: explains(/cross_attention\.k$/),
};

export const next: Stop = {
  id: "next-word",
  task: "translate",
  room: "translate",
  mark: ({ trace }) => `The marked choice is “${leastSure(trace).label}”, the one that the model was least sure of.`,
  prediction: { kind: "drag", most: 100 },
  async reveal({ trace }) {
    const logits = await trace.row("logits", leastSure(trace).at);
    const at_ = (temperature: number) => softmax(logits.map((one) => one / temperature));
    const [normal, bold, careful] = [1, 2, 0.5].map(at_);
    const best = largest(logits);
    const [piece] = await trace.pieces([best]);
    const sorted = normal.toSorted((a, b) => b - a);
    let [count, sum] = [0, 0];
    while (sum < 0.9 && count < sorted.length) sum += sorted[count++];
    return {
      facts: [
        { key: "entries", label: "Entries of the vocabulary", value: logits.length },
        { key: "likeliest", label: "The likeliest", value: piece.replace(/^[▁Ġ]/, "") },
        { key: "logit", label: "Its logit", value: logits[best] },
        { key: "normal", label: "Its probability", value: normal[best], share: true },
        { key: "bold", label: "With temperature 2", value: bold[best], share: true },
        { key: "careful", label: "With temperature 0.5", value: careful[best], share: true },
        { key: "top-p", label: "Entries that top-p = 0.9 draws from", value: count },
      ],
      answer: bold[best] * 100,
      holds: true,
    };
  },
  done: ({ view }) => view.sample && view.temperature !== 1,
};

export const loop: Stop = {
  id: "the-loop",
  task: "translate",
  room: "glass",
  prediction: { kind: "type" },
  async reveal({ trace }) {
    const steps = trace.words("target").length;
    return {
      facts: [
        { key: "reading", label: "Passes of the encoder", value: 1 },
        { key: "writing", label: "Passes of the decoder", value: steps },
        { key: "cached", label: "Positions that they compute with the cache", value: steps },
        { key: "uncached", label: "Positions without the cache", value: (steps * (steps + 1)) / 2 },
      ],
      answer: steps,
      holds: true,
    };
  },
  /** In the middle of the decoder's steps: some keys and values are reused. */
  done: ({ view, trace }) => {
    const read = view.step - trace.stacks[0].layers - 1;
    return read > 1 && read < trace.words("target").length;
  },
};

export const beams: Stop = {
  id: "beams",
  task: "translate",
  room: "beams",
  show: (): Partial<View> => ({ beams: 4 }),
  prediction: { kind: "choose" },
  async reveal({ app, trace }) {
    const { view, api } = app;
    const { length_penalty } = effective({ ...searchOf(view), sample: false, beams: 4 });
    const search = (beams: number) => ({ ...effective({ ...searchOf(view), sample: false, beams: 1 }), beams, length_penalty });
    const [greedy, wide] = await Promise.all([1, 4].map((count) => api.translate(trace.manifest.model, view.text.trim(), search(count))));
    const [one, four] = [greedy.score ?? 0, wide.score ?? 0];
    return {
      facts: [
        { key: "greedy", label: "Greedy search", value: greedy.text },
        { key: "greedy-score", label: "Its score", value: one },
        { key: "wide", label: "Four beams", value: wide.text },
        { key: "wide-score", label: "Its score", value: four },
      ],
      answer: wide.text === greedy.text ? 0 : four > one ? 1 : 2,
      holds: true,
    };
  },
  done: ({ view }) => view.prefix !== "",
};

/** The words of a text in reverse order. */
export const reversed = (text: string) => text.trim().split(/\s+/).reverse().join(" ");

/** The positions of a text's tokens, word by word from the last to the first, then the special tokens at the end. */
function reversedPositions(tokens: string[]): number[] {
  const first = tokens.findIndex((token) => !isSpecial(token));
  const last = tokens.findLastIndex((token) => !isSpecial(token));
  const groups: number[][] = [];
  for (let i = first; i <= last; i++) {
    if (i === first || /^[▁Ġ]/.test(tokens[i])) groups.push([]);
    groups[groups.length - 1].push(i);
  }
  const every = [...tokens.keys()];
  return [...every.slice(0, first), ...groups.reverse().flat(), ...every.slice(last + 1)];
}

/** How much the encoder's vectors change if the words are reversed, with and without positions; null: not comparable. */
export async function reordered(live: Live): Promise<{ with: number[]; without: number[] } | null> {
  const text = reversed(live.view.text);
  const without = { without: ["positions"] };
  const traces = await Promise.all([live.traced(null), live.traced(null, text), live.traced(without), live.traced(without, text)]);
  const outputs = await Promise.all(traces.map((trace) => trace.tensor(inReader(trace, "output"))));
  const [ids, others] = traces.map((trace) => trace.manifest.ids.source!);
  const order = reversedPositions(traces[0].words("source"));
  if (text === live.view.text.trim() || ids.length !== others.length || order.some((from, to) => ids[from] !== others[to])) return null;
  const compare = (a: number, b: number) =>
    order.map((from, to) => {
      const [one, other] = [row(outputs[a], from), row(outputs[b], to)];
      const apart = one.map((value, i) => value - other[i]);
      return Math.sqrt(dot(apart, apart) / dot(one, one));
    });
  return { with: compare(0, 1), without: compare(2, 3) };
}

/** Whether the words of two texts are the same in another order. */
export function shuffled(one: string, other: string): boolean {
  const words = (text: string) => text.trim().split(/\s+/).toSorted().join(" ");
  return one.trim() !== other.trim() && words(one) === words(other);
}

export const withoutPositions = (view: View) => /(^|,)positions(,|$)/.test(view.changes);

export const positions: Stop = {
  id: "positions",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: inReader(trace, "embedding") }),
  prediction: { kind: "choose" },
  async reveal(live) {
    const base = await live.traced(null);
    const path = inReader(base, "embedding.positions");
    const found = await reordered(live);
    const facts: Fact[] = [];
    if (found) {
      facts.push({ key: "without", label: "Largest change of a word's vector in the reversed sentence, without positions", value: Math.max(...found.without) });
      facts.push({ key: "with", label: "The same with positions (1 is as long as the vector)", value: Math.max(...found.with) });
    }
    let even = base.has(path);
    if (even) {
      const waves = await base.tensor(path);
      const middle = Math.max(Math.floor(waves.shape[0] / 2), 1);
      const [start, inside] = [0, middle - 1].map((p) => dot(row(waves, p), row(waves, p + 1)));
      facts.push({ key: "start", label: "Product of the patterns of positions 1 and 2", value: start });
      facts.push({ key: "middle", label: `Of positions ${middle} and ${middle + 1}`, value: inside });
      even = Math.abs(start - inside) <= 1e-4 * Math.abs(start);
    }
    return {
      facts,
      answer: 1,
      holds: found !== null && even && Math.max(...found.without) < 1e-4 && Math.max(...found.with) > 1e-2,
    };
  },
  done: ({ view, entry }) => withoutPositions(view) && shuffled(view.text, entry.text),
  action: { label: "Shuffle the words", change: ({ view }) => ({ text: reversed(view.text), target: "" }) },
};
