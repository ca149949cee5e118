/** The stops inside one attention. */

import { split, changed } from "../../../shared/words";
import { searchOf } from "../../../app/view.svelte";
import { effective } from "../../../app/search";
import { attentions } from "../../../trace/attention";
import { at, row, type Trace } from "../../../trace/trace";
import { dot, entropy, largest, length, softmax, total } from "../maths";
import { answerOf, beginnings, explains, inReader, labelled, select, type Live, type Stop } from "../stop";

const encoders = (trace: Trace) => attentions(trace).filter(({ stack }) => stack === trace.stacks[0]);

/** The other words of the sentence. */
function others(live: Live): { at: number; label: string }[] {
  const tokens = live.trace.words("source");
  const begins = beginnings(tokens);
  return labelled(tokens).filter(({ at }) => at !== live.focus && begins(at));
}

/** The adjectives that change the meaning of “it”. */
const SWAPS: Record<string, string> = { tired: "wide", wide: "tired" };

/** The sentence with the other adjective, if it has one. */
export function swapped(text: string): string | null {
  const other = text.replace(/\b(tired|wide)\b/, (found) => SWAPS[found]);
  return other === text ? null : other;
}

export const which: Stop = {
  id: "which-word",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: inReader(trace, `layers.${trace.stacks[0].layers - 1}.self_attention`), ...select(trace) }),
  mark: (live) => `The marked word is “${live.marked}”.`,
  prediction: { kind: "choose", options: (live) => others(live).map(({ label }) => label) },
  async reveal(live) {
    const { app, trace, focus } = live;
    const found = encoders(trace);
    const weights = await live.tensors(...found.map(({ path }) => `${path}.probabilities`));
    const links = others(live).map((one) => {
      let best = { weight: -1, layer: 0, head: 0 };
      weights.forEach((tensor, layer) => {
        for (let head = 0; head < tensor.shape[0]; head++) {
          const weight = at(tensor, head, focus, one.at);
          if (weight > best.weight) best = { weight, layer, head };
        }
      });
      return { ...one, ...best };
    });
    links.sort((a, b) => b.weight - a.weight);
    const facts = links.slice(0, 4).map(({ at: key, label, weight, layer, head }) => ({
      key: `weight-${key}`,
      label: `Largest weight for “${label}”: layer ${layer + 1}, head ${head + 1}`,
      value: weight,
      share: true,
      node: { name: `${found[layer].path}.probabilities`, at: [head, focus, key] },
    }));
    const other = swapped(app.view.text);
    const target = answerOf(trace).target ?? "";
    const search = effective(searchOf(app.view));
    const text = other ? (await app.api.translate(trace.manifest.model, other, search)).text : target;
    const [here, there] = [split(target), split(text)];
    const differ = (before: string[], now: string[]) => now.filter((_, i) => changed(before, now)[i]).join(" ");
    if (other) {
      facts.push({ key: "here", label: "Words of this translation that change", value: differ(there, here) } as never);
      facts.push({ key: "there", label: `Translated with “${/\bwide\b/.test(other) ? "wide" : "tired"}”`, value: differ(here, there) } as never);
    }
    // The adjective changes anyway; the pronoun is a second word.
    const holds = changed(here, there).filter(Boolean).length > 1;
    return { facts, answer: links[0]?.label ?? "", holds };
  },
  depends: (live) => String(live.focus),
  done: ({ view, trace, entry }) => view.text !== entry.text && answerOf(trace).target !== entry.target,
};

/** The first self-attention. */
const first = (trace: Trace) => inReader(trace, "layers.0.self_attention");

/** The head that the open attention shows first. */
const headOf = ({ view, trace }: Live, path = first(trace)) => {
  const head = Number(view.heads.split("-")[0] || 0);
  return head < trace.shape(`${path}.probabilities`)[0] ? head : 0;
};

const openFirst = (trace: Trace) => ({ open: first(trace), ...select(trace) });
const markHead = (live: Live) =>
  `The marked word is “${live.marked}”, the marked head is head ${headOf(live) + 1} of the first encoder layer.`;
const focusAndHead = (live: Live) => `${live.focus} ${headOf(live)}`;

export const queries: Stop = {
  id: "query-key-and-value",
  task: "translate",
  room: "glass",
  show: openFirst,
  mark: markHead,
  prediction: { kind: "type" },
  async reveal(live) {
    const { trace, focus } = live;
    const head = headOf(live);
    const [q, k, v] = await live.tensors(`${first(trace)}.q`, `${first(trace)}.k`, `${first(trace)}.v`);
    const [heads, , d_k] = q.shape;
    const number = (name: string, tensor: typeof q) => ({
      key: name,
      label: `First number of ${name} of “${live.marked}”`,
      value: at(tensor, head, focus, 0),
      node: { name: `${first(trace)}.${name}`, at: [head, focus, 0] },
    });
    return {
      facts: [
        { key: "width", label: "Numbers in the vector of a word (d_model)", value: trace.config.d_model },
        { key: "heads", label: "Heads", value: heads },
        { key: "d_k", label: "Numbers in a query, a key and a value (d_k)", value: d_k },
        { key: "matrix", label: "Size of each matrix W^Q, W^K and W^V of one head", value: `${trace.config.d_model} × ${d_k}` },
        number("q", q),
        number("k", k),
        number("v", v),
      ],
      answer: d_k,
      holds: true,
    };
  },
  depends: focusAndHead,
  done: explains(/\.q(_unrotated)?$/),
};

export const scores: Stop = {
  id: "from-scores-to-weights",
  task: "translate",
  room: "glass",
  show: openFirst,
  mark: markHead,
  prediction: { kind: "drag", most: 100 },
  async reveal(live) {
    const { focus, trace } = live;
    const head = headOf(live);
    const names = ["scores", "scaled", "probabilities", "z"];
    const [raw, scaled, weights, z] = await live.tensors(...names.map((name) => `${first(trace)}.${name}`));
    const key = largest(row(raw, head, focus));
    const node = (name: string) => ({ name: `${first(trace)}.${name}`, at: [head, focus, key] });
    const share = at(weights, head, focus, key);
    const [heads, length_] = weights.shape;
    const mean = (of: (h: number, q: number) => number) => {
      let sum = 0;
      for (let h = 0; h < heads; h++) for (let q = 0; q < length_; q++) sum += of(h, q);
      return sum / (heads * length_);
    };
    const spread = mean((h, q) => entropy(row(weights, h, q)));
    const unscaled = mean((h, q) => entropy(softmax(row(raw, h, q))));
    const [mine, other] = [row(z, head, focus), row(z, head, key === focus ? Math.max(focus - 1, 0) : key)];
    return {
      facts: [
        { key: "score", label: `Largest score: “${live.marked}” for “${live.word(key)}”`, value: at(raw, head, focus, key), node: node("scores") },
        { key: "scaled", label: "Divided by √d_k", value: at(scaled, head, focus, key), node: node("scaled") },
        { key: "share", label: "After the softmax", value: share, share: true, node: node("probabilities") },
        { key: "sum", label: `Sum of all weights of “${live.marked}”`, value: total(row(weights, head, focus)) },
        { key: "z", label: `First number of z of “${live.marked}”`, value: mine[0], node: { name: `${first(trace)}.z`, at: [head, focus, 0] } },
        { key: "other-z", label: `First number of z of “${live.word(key === focus ? Math.max(focus - 1, 0) : key)}”`, value: other[0] },
        { key: "entropy", label: "Mean entropy of all weights of this layer", value: spread },
        { key: "unscaled", label: "The same without the division", value: unscaled },
      ],
      answer: share * 100,
      holds: unscaled < spread,
    };
  },
  depends: focusAndHead,
  done: ({ view }) => /(^|,)scale(@|,|$)/.test(view.changes),
};

export const matrices: Stop = {
  id: "matrices",
  task: "translate",
  room: "glass",
  show: openFirst,
  prediction: { kind: "type" },
  async reveal(live) {
    const { trace } = live;
    const [heads, rows, columns] = trace.shape(`${first(trace)}.probabilities`);
    const [, , d_k] = trace.shape(`${first(trace)}.q`);
    const all = total(attentions(trace).map(({ path }) => trace.shape(`${path}.probabilities`).reduce((a, b) => a * b)));
    return {
      facts: [
        { key: "q", label: "Q, the queries of one head", value: `${rows} × ${d_k}` },
        { key: "k", label: "K, its keys", value: `${columns} × ${d_k}` },
        { key: "scores", label: "Scores of one head", value: rows * columns },
        { key: "layer", label: `Scores of the ${heads} heads of this attention`, value: heads * rows * columns },
        { key: "all", label: "Scores of the whole model for this translation", value: all },
      ],
      answer: rows * columns,
      holds: true,
    };
  },
  done: ({ view }) => view.key >= 0,
};

const residual = (trace: Trace) => `${first(trace)}_residual`;

export const addAndNorm: Stop = {
  id: "add-and-norm",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: residual(trace), ...select(trace) }),
  mark: (live) => `The marked word is “${live.marked}”, in the first encoder layer.`,
  prediction: { kind: "drag", most: 300 },
  async reveal(live) {
    const { focus, trace } = live;
    const names = ["input", "sublayer", "norm.input", "norm.mean", "norm.variance"];
    const [input, added, read, means, variances] = await live.tensors(...names.map((name) => `${residual(trace)}.${name}`));
    const other = focus > 0 ? focus - 1 : Math.min(1, input.shape[0] - 1);
    const ratio = length(row(added, focus)) / length(row(input, focus));
    const normed = Array.from(row(read, focus), (x) => (x - means.data[focus]) / Math.sqrt(variances.data[focus] + trace.config.norm_epsilon));
    const mean = total(normed) / normed.length;
    const of = (name: string, i: number) => ({ name: `${residual(trace)}.norm.${name}`, at: [i] });
    return {
      facts: [
        { key: "old", label: `Length of the vector of “${live.marked}”`, value: length(row(input, focus)) },
        { key: "added", label: "Length of what attention adds", value: length(row(added, focus)) },
        { key: "ratio", label: "In percent", value: ratio, share: true },
        { key: "mean", label: `Mean of what the norm reads for “${live.marked}”`, value: means.data[focus], node: of("mean", focus) },
        { key: "variance", label: "Its variance", value: variances.data[focus], node: of("variance", focus) },
        { key: "other-mean", label: `Mean for “${live.word(other)}”`, value: means.data[other], node: of("mean", other) },
        { key: "other-variance", label: "Its variance", value: variances.data[other], node: of("variance", other) },
        { key: "after", label: `Variance for “${live.marked}” after the division`, value: dot(normed, normed) / normed.length - mean * mean },
      ],
      answer: ratio * 100,
      holds: true,
    };
  },
  depends: (live) => String(live.focus),
  done: explains(/norm\.(mean|variance)$/),
};

const feed = (trace: Trace) => inReader(trace, "layers.0.feed_forward");

export const feedForward: Stop = {
  id: "feed-forward",
  task: "translate",
  room: "glass",
  show: (trace) => ({ open: feed(trace), ...select(trace) }),
  mark: (live) => `The marked word is “${live.marked}”, in the first encoder layer.`,
  prediction: { kind: "drag", most: 100 },
  async reveal(live) {
    const { focus, trace } = live;
    const [units] = await live.tensors(`${feed(trace)}.units`);
    const mine = Array.from(row(units, focus));
    const other = focus > 0 ? focus - 1 : Math.min(1, units.shape[0] - 1);
    const theirs = row(units, other);
    const active = mine.filter((value) => value > 0).length;
    const both = mine.filter((value, i) => value > 0 && theirs[i] > 0).length;
    const best = largest(mine);
    const { d_model } = trace.config;
    return {
      facts: [
        { key: "units", label: "Units", value: mine.length },
        { key: "active", label: `Active for “${live.marked}”`, value: active },
        { key: "share", label: "Their share", value: active / mine.length, share: true },
        { key: "both", label: `Of these, also active for “${live.word(other)}”`, value: both },
        { key: "strongest", label: `Strongest unit for “${live.marked}”: unit ${best}`, value: mine[best], node: { name: `${feed(trace)}.units`, at: [focus, best] } },
        { key: "matrices", label: "Numbers in the two matrices of this network", value: 2 * d_model * mine.length * (trace.config.activation === "swiglu" ? 1.5 : 1) },
        { key: "attention", label: "Numbers in the four matrices of this layer's attention", value: 4 * d_model * d_model },
      ],
      answer: (active / mine.length) * 100,
      holds: true,
    };
  },
  depends: (live) => String(live.focus),
  done: explains(/feed_forward\.(units|inner)$/),
};
