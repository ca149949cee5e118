/**
 * The explanation of numbers. The manifest of a trace states the rule of each tensor, its operands and its weights; here
 * each rule has its formula and its words. Only products and powers of the shown numbers are computed.
 */

import { bracketed, inTex, word } from "../shared/numbers";
import { kindOf, titleOf, tokensOf } from "./titles";
import { at, row, type Step, type Trace } from "./trace";

/** One number of a trace. */
export interface Node {
  name: string;
  at: number[];
}

/** A number with its name. `node`: the number in the trace, if it can be explained. */
export interface Operand {
  label: string;
  value: number;
  node?: Node;
}

export type Kind =
  | "dot" // the sum of products, plus a bias
  | "factor" // the sum of products, times a factor
  | "sum"
  | "product"
  | "quotient"
  | "softmax"
  | "mask"
  | "norm"
  | "mean"
  | "variance"
  | "activation"
  | "gate"
  | "turn"
  | "wave"
  | "weight"
  | "same";

export interface Derivation {
  node: Node;
  value: number;
  kind: Kind;
  title: string;
  /** One sentence of explanation. */
  text: string;
  /** The rule with symbols, and with numbers. */
  formula: string;
  live: string;
  /** The operands of a sum, one row each. */
  columns: string[];
  rows: Operand[][];
  /** Single operands. */
  also: Operand[];
}

export const nodeName = ({ name, at }: Node) => `${name}@${at.join(",")}`;

export function nodeFrom(text: string): Node | null {
  const found = /^([\w.]+)@(\d+(?:,\d+)*)$/.exec(text);
  return found && { name: found[1], at: found[2].split(",").map(Number) };
}

/** Whether a tensor has a value for each entry of the vocabulary. These are loaded by position. */
const isLarge = (trace: Trace, name: string) => trace.axes(name).includes("vocabulary");

/** The numbers along the last axis of a tensor. */
async function vector(trace: Trace, name: string, index: number[]): Promise<Float32Array> {
  return isLarge(trace, name) ? trace.row(name, index[0]) : row(await trace.tensor(name), ...index);
}

/** The value of one number. */
export async function valueOf(trace: Trace, { name, at: index }: Node): Promise<number> {
  return (await vector(trace, name, index.slice(0, -1)))[index[index.length - 1]];
}

/** Whether a trace contains a number. */
export function exists(trace: Trace, { name, at }: Node): boolean {
  const shape = trace.shape(name);
  return trace.has(name) && at.length === shape.length && at.every((index, axis) => index < shape[axis]);
}

export async function derive(trace: Trace, node: Node): Promise<Derivation> {
  const step = trace.step(node.name);
  if (!step) throw new Error(`The trace does not state how ${node.name} is computed.`);
  const operands = (step.operands ?? []).map((one) => one.name);
  const { weights = [], constants = {} } = step;
  const about = { trace, node, name: node.name, at: node.at, kind: kindOf(trace, node.name), operands, weights, constants };
  const [title, value, made] = await Promise.all([titleOf(trace, node), valueOf(trace, node), RULES[step.rule](about)]);
  return { node, value, title, columns: [], rows: [], also: [], ...made };
}

/** A number to explain: the rule of its tensor, and its place in it. */
interface Case extends Node {
  trace: Trace;
  node: Node;
  kind: string;
  operands: string[];
  weights: string[];
  constants: NonNullable<Step["constants"]>;
}

type Made = Pick<Derivation, "kind" | "text" | "formula" | "live"> & Partial<Pick<Derivation, "columns" | "rows" | "also">>;
type Rule = (about: Case) => Promise<Made>;

// --- Helpers of the rules

const SHOWN = 2;

/** The first terms of a sum, dots, and the last one. */
function terms<One>(all: One[], most: number, written: (one: One) => string): string {
  const some = all.length <= most ? all.map(written) : [...all.slice(0, SHOWN).map(written), "\\dots", written(all[all.length - 1])];
  return some.join(" + ");
}

const addends = (values: Operand[]) => terms(values, SHOWN + 2, (one) => bracketed(one.value));

/** The first products of a sum. A line may break between them. */
const products = (rows: Operand[][]) => terms(rows, SHOWN + 1, ([a, b]) => `{${bracketed(a.value)}\\cdot ${bracketed(b.value)}}`);

interface Factor {
  values: ArrayLike<number>;
  node?: (i: number) => Node;
}

const multiplied = (left: Factor, right: Factor, label: (i: number) => string = String): Operand[][] =>
  Array.from(left.values, (a, i) => [
    { label: label(i), value: a, node: left.node?.(i) },
    { label: label(i), value: right.values[i], node: right.node?.(i) },
    { label: label(i), value: a * right.values[i] },
  ]);

/** The sum of a row of products, plus a bias. */
async function weighted({ trace, operands: [input], weights: [matrix, bias] }: Case, index: number[], out: number, symbol: string) {
  const [x, weights, biases] = await Promise.all([
    vector(trace, input, index),
    trace.weights(matrix, out),
    bias ? trace.weights(bias) : undefined,
  ]);
  const rows = multiplied({ values: x, node: (i) => ({ name: input, at: [...index, i] }) }, { values: weights });
  const also = biases ? [{ label: "bias", value: biases[out] }] : [];
  const live = [products(rows), ...also.map((one) => bracketed(one.value))].join(" + ");
  return { kind: "dot" as const, live, columns: ["channel", symbol, "weight", "product"], rows, also };
}

const shared = (index: number[]) => index.slice(0, -1);
const last = (index: number[]) => index[index.length - 1];

/** A number of a tensor, with a name. */
async function one(trace: Trace, label: string, name: string, at: number[]): Promise<Operand> {
  const node = { name, at };
  return { label, value: await valueOf(trace, node), node };
}

const unchanged = (x: Operand, text: string, formula = "y = x"): Made => ({ kind: "same", text, formula, live: inTex(x.value), also: [x] });

/** A learned number: a channel of a row of a table. */
async function learned({ trace, at, weights: [table] }: Case, row: number, symbol: string, formula: string, text: string): Promise<Made> {
  const value = (await trace.weights(table, row))[last(at)];
  return { kind: "weight", text, formula, live: inTex(value), also: [{ label: `${symbol}[${row}][${last(at)}]`, value }] };
}

// --- The words of rules that several tensors have

/** By the tensor that is copied; first by both. */
const COPIES: Record<string, string> = {
  "stack.output": "The top of the stack.",
  "residual.sum ← residual.sublayer": "The residual connection is off: the output of the sub-layer replaces its input.",
  "norm.output ← norm.input": "The norm is off: the vector does not change.",
  "norm.input ← embedding.sum": "The vector before normalisation.",
  "residual.output ← norm.output": "The normalised sum.",
  "embedding.output ← norm.output": "The normalised sum.",
  "attention.scores": "The division by √d_k is off.",
  "norm.output": "The normalised vector of the token.",
  "residual.input": "The vector of the token.",
  "residual.sum": "The sum of the vector and the output of the sub-layer.",
  "residual.output": "The output of the previous step.",
  "attention.output": "The output of the sub-layer.",
  "feed_forward.output": "The output of the sub-layer.",
  "embedding.sum": "The sum of the word and its position.",
  "embedding.output": "The output of the embedding.",
};

const LINEAR: Record<string, { text: string; formula: string; symbol: string }> = {
  "attention.output": {
    text: "A learned matrix W^O mixes all heads (§3.2.2).",
    formula: "\\sum_i \\mathrm{concat}_i\\, W^O_{i,c}",
    symbol: "concat",
  },
  "feed_forward.inner": {
    text: "Each unit detects one pattern in the vector of the token (§3.3).",
    formula: "\\sum_i x_i\\, W_{1\\,i,c} + b_{1\\,c}",
    symbol: "x",
  },
  "feed_forward.output": { text: "The contribution of all units to this channel.", formula: "\\sum_j u_j\\, W_{2\\,j,c} + b_{2\\,c}", symbol: "unit" },
  "head.output": { text: "The top vector times a learned matrix.", formula: "\\sum_i x_i\\, W_{i,c} + b_c", symbol: "x" },
  logits: { text: "The dot product of the top vector and the row of this entry.", formula: "\\sum_i x_i\\, E_{v,i}", symbol: "x" },
};

const ACTIVATIONS: Record<string, { text: string; formula: (x: string) => string }> = {
  relu: { text: "Negative inputs become 0 (ReLU).", formula: (x) => `\\max(0, ${x})` },
  gelu: { text: "Strongly negative inputs become almost 0 (GELU).", formula: (x) => `${x}\\cdot\\Phi(${x})` },
  "gelu-tanh": {
    text: "Strongly negative inputs become almost 0 (GELU, approximated with tanh).",
    formula: (x) => `\\tfrac{1}{2}${x}\\left(1 + \\tanh\\left(\\sqrt{2/\\pi}\\,(${x} + 0.044715\\cdot ${x}^3)\\right)\\right)`,
  },
  swish: { text: "Strongly negative inputs become almost 0 (swish).", formula: (x) => `\\frac{${x}}{1 + e^{-${x}}}` },
};

const ADDENDS: Record<string, [label: string, symbol: string]> = {
  "embedding.scaled": ["word", "x"],
  "embedding.positions": ["position", "PE"],
  "embedding.segments": ["segment", "S"],
  "residual.input": ["x", "x"],
  "residual.sublayer": ["sub-layer", "\\mathrm{Sublayer}(x)"],
};

const added = async ({ trace, at, operands }: Case, text: string): Promise<Made> => {
  const names = operands.map((name) => ADDENDS[kindOf(trace, name)]);
  const also = await Promise.all(operands.map((name, i) => one(trace, names[i][0], name, at)));
  return { kind: "sum", text, formula: names.map(([, symbol]) => symbol).join(" + "), live: addends(also), also };
};

/** The words along the key axis of a tensor. */
function labelled(trace: Trace, name: string): (j: number) => string {
  const words = trace.words(trace.sides(name).key!);
  return (j) => word(words[j] ?? String(j));
}

const channels = async ({ trace, at: [p], operands: [x] }: Case): Promise<Operand[]> =>
  Array.from(await vector(trace, x, [p]), (value, i) => ({ label: String(i), value, node: { name: x, at: [p, i] } }));

// --- The rules that a manifest can state, in the order of docs/reference/trace.md

const RULES: Record<Step["rule"], Rule> = {
  async embedding(about) {
    const { trace, name, at } = about;
    const id = trace.manifest.ids[trace.sides(name).position!][at[0]];
    return learned(about, id, "E", "x = E_{\\mathrm{id},\\,c}", `A learned number: this token is row ${id} of the embedding table.`);
  },
  segments: (about) => learned(about, 0, "S", "S_{0,\\,c}", "A learned number for the text to which the word belongs: here the first."),
  async positions(about) {
    const { trace, name, at, weights, constants } = about;
    const { kind, frequencies, min_timescale, max_timescale, start } = trace.config.positions;
    const [p, c] = at;
    const width = last(trace.shape(name));
    const half = Math.ceil(width / 2);
    const sine = kind === "interleaved" ? c % 2 === 0 : c < half;
    const rotates = kind === "rotary";
    if (constants.off) return unchanged({ label: "x", value: rotates && !sine ? 1 : 0 }, "Positions are off: all tokens have the same.");
    if (weights.length) return learned(about, p, "PE", "PE_{p,\\,c}", "A learned number: each position is a row of a table.");
    const i = kind === "interleaved" ? Math.floor(c / 2) : c % half;
    const steps = Math.max(Math.floor(width / 2) - 1, 1);
    const paper = frequencies === "paper";
    const timescale = paper ? max_timescale ** ((2 * i) / width) : min_timescale * (max_timescale / min_timescale) ** (i / steps);
    const curve = sine ? "\\sin" : "\\cos";
    return {
      kind: "wave",
      text: rotates
        ? "Sine or cosine of the angle that rotates queries and keys. It is not learned."
        : "A wave along the sentence that slows from channel to channel (§3.5). It is not learned.",
      formula: paper ? `${curve}\\!\\left(p \\,/\\, ${max_timescale}^{2i/${width}}\\right)` : `${curve}(p / t_i)`,
      live: `${curve}(${p + start} / ${inTex(timescale)})`,
      also: [
        { label: sine ? "p (sine)" : "p (cosine)", value: p + start },
        { label: "timescale", value: timescale },
      ],
    };
  },
  async copy({ trace, at, kind, operands: [from] }) {
    const copied = kindOf(trace, from);
    return unchanged(await one(trace, "x", from, at), COPIES[`${kind} ← ${copied}`] ?? COPIES[kind] ?? COPIES[copied]);
  },
  zeros: async () => unchanged({ label: "y", value: 0 }, "This part is off: its output is 0.", "0"),
  async scale({ trace, at, operands: [from], constants: { factor } }) {
    const x = await one(trace, "x", from, at);
    if (factor === 1) return unchanged(x, "This model does not scale its embeddings.");
    return {
      kind: "product",
      text: "Scaled so that the position, at most 1, does not dominate (§3.4).",
      formula: "x\\cdot\\sqrt{d_\\mathrm{model}}",
      live: `${inTex(x.value)}\\cdot\\sqrt{${trace.config.d_model}}`,
      also: [x, { label: "√d_model", value: Number(factor) }],
    };
  },
  async sum(about) {
    const { trace, at, operands } = about;
    if (operands.length > 1) return added(about, "The word and its position are added to one vector (§3.5).");
    const rotates = trace.config.positions.kind === "rotary";
    return unchanged(
      await one(trace, "word", operands[0], at),
      rotates ? "The position is not added here: it rotates queries and keys." : "This model adds nothing to the word.",
    );
  },
  residual: (about) => added(about, "The output of the sub-layer is added to its input (§3.1)."),
  async linear(about) {
    const { text, formula, symbol } = LINEAR[about.kind];
    return { text, formula, ...(await weighted(about, shared(about.at), last(about.at), symbol)) };
  },
  async projection(about) {
    const { trace, name, at, kind, operands, constants } = about;
    const [h, a, c] = at;
    const d_k = trace.shape(name)[2];
    const out = (Number(constants.part) * Number(constants.heads) + h) * d_k + c;
    const letter = kind[kind.indexOf(".") + 1];
    const fromTop = kindOf(trace, operands[0]) === "stack.output";
    const which = { q: "query", k: "key", v: "value" }[letter];
    return {
      text: `The ${which} of a token: its vector ${fromTop ? `from the ${operands[0].split(".")[0]} ` : ""}times a learned matrix.`,
      formula: `${letter}_c = \\sum_i x_i\\, W^${letter.toUpperCase()}_{i,c}`,
      ...(await weighted(about, [a], out, fromTop ? "memory" : "x")),
    };
  },
  async rotation({ trace, name, at: [h, a, c], operands: [x, waves] }) {
    const half = trace.shape(name)[2] / 2;
    const pair = c % half;
    const first = c < half;
    const [left, right, sine, cosine] = await Promise.all([
      one(trace, "left", x, [h, a, pair]),
      one(trace, "right", x, [h, a, pair + half]),
      one(trace, first ? "−sin" : "sin", waves, [a, pair]),
      one(trace, "cos", waves, [a, pair + half]),
    ]);
    const [own, other] = first ? [left, right] : [right, left];
    const turned = ({ value }: Operand, wave: Operand) => `${bracketed(value)}\\cdot ${bracketed(wave.value)}`;
    return {
      kind: "turn",
      text: "The angle of the position rotates pairs of channels, so that scores depend on the distance of two tokens.",
      formula: first ? "l\\cos\\theta - r\\sin\\theta" : "r\\cos\\theta + l\\sin\\theta",
      live: `${turned(own, cosine)} ${first ? "-" : "+"} ${turned(other, sine)}`,
      also: [own, cosine, other, { ...sine, value: first ? -sine.value : sine.value }],
    };
  },
  async scores({ trace, node, at: [h, a, b], operands: [q, k] }) {
    const [query, key] = await Promise.all([vector(trace, q, [h, a]), vector(trace, k, [h, b])]);
    const rows = multiplied(
      { values: query, node: (c) => ({ name: q, at: [h, a, c] }) },
      { values: key, node: (c) => ({ name: k, at: [h, b, c] }) },
    );
    const tokens = tokensOf(trace, node);
    const text = `The dot product of the query of ${tokens.query} and the key of ${tokens.key}.`;
    return { kind: "dot", text, formula: "q\\cdot k = \\sum_c q_c\\, k_c", live: products(rows), columns: ["channel", "q", "k", "product"], rows };
  },
  async scaled_scores({ trace, at, operands: [from], constants: { d_k } }) {
    const score = await one(trace, "q·k", from, at);
    return {
      kind: "quotient",
      text: "Divided by √d_k, because large scores saturate the softmax (§3.2.1).",
      formula: "\\frac{q\\cdot k}{\\sqrt{d_k}}",
      live: `\\frac{${inTex(score.value)}}{\\sqrt{${d_k}}}`,
      also: [score, { label: "√d_k", value: Math.sqrt(Number(d_k)) }],
    };
  },
  async mask({ trace, node, at, operands: [from], constants: { causal } }) {
    const { query, key } = tokensOf(trace, node);
    const scaled = await one(trace, "scaled score", from, at);
    const hidden = Boolean(causal) && at[2] > at[1];
    return {
      kind: "mask",
      text: hidden
        ? `${key} is after ${query}, so it is hidden: minus infinity becomes a weight of 0 (§3.2.3).`
        : "Visible: the score does not change.",
      formula: hidden ? "-\\infty" : "\\frac{q\\cdot k}{\\sqrt{d_k}}",
      live: hidden ? "-\\infty" : inTex(scaled.value),
      also: [scaled, { label: hidden ? "hidden" : "visible", value: hidden ? 0 : 1 }],
    };
  },
  async softmax({ trace, name, at, operands: [from] }) {
    const scores = await vector(trace, from, shared(at));
    const node = (j: number) => ({ name: from, at: [...shared(at), j] });
    const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const powers = Array.from(scores, (score) => (score === -Infinity ? 0 : Math.exp(score - most)));
    const total = powers.reduce((a, b) => a + b, 0);
    const results = [
      { label: "this one", value: powers[last(at)] },
      { label: "sum of all", value: total },
    ];
    const made = {
      kind: "softmax" as const,
      formula: "\\frac{e^{s_j - \\max s}}{\\sum_i e^{s_i - \\max s}}",
      live: `\\frac{e^{${inTex(scores[last(at)])} - ${bracketed(most)}}}{${inTex(total)}}`,
    };
    if (isLarge(trace, name)) {
      const logit = { label: "logit", value: scores[last(at)], node: node(last(at)) };
      return { ...made, text: "The softmax turns the logits of all entries into probabilities.", also: [logit, ...results] };
    }
    const label = labelled(trace, name);
    const rows = Array.from(scores, (score, j) => [
      { label: label(j), value: score, node: node(j) },
      { label: label(j), value: powers[j] },
    ]);
    const text = "The softmax turns scores into positive weights with sum 1.";
    return { ...made, text, columns: ["word", "score", "e^(score − max)"], rows, also: results };
  },
  async edited_softmax(about) {
    const { trace, at: [h, a, b], operands: [from], constants } = about;
    const scores = await vector(trace, from, [h, a]);
    const seen = Array.from(scores, (score) => Number(score !== -Infinity));
    const keys = seen.reduce((sum, one) => sum + one, 0);
    const averaged = ((constants.average ?? []) as number[]).includes(h);
    const edits = ((constants.cells ?? []) as number[][]).filter(([head, query, key]) => head === h && query === a && seen[key]);
    const cells = new Map(edits.map(([, , key, value]) => [key, value]));
    if (cells.has(b)) return unchanged({ label: "set", value: cells.get(b)! }, "A what-if has set this weight.", "p");
    if (averaged && !cells.size)
      return {
        kind: "quotient",
        text: "A what-if: this head attends equally to all keys that are not hidden.",
        formula: "\\frac{1}{n}",
        live: `\\frac{${seen[b]}}{${keys}}`,
        also: [{ label: seen[b] ? "visible" : "hidden", value: seen[b] }, { label: "keys", value: keys }],
      };
    const plain = await RULES.softmax(about);
    if (!cells.size) return plain;
    const total = last(plain.also!.map((one) => one.value));
    const before = plain.rows!.map(([, power], j) => (averaged ? seen[j] / keys : power.value / total));
    const rest = before.reduce((sum, value, j) => (cells.has(j) ? sum : sum + value), 0);
    const wanted = [...cells.values()].reduce((sum, value) => sum - value, 1);
    const factor = rest > 0 ? wanted / rest : 0;
    return {
      kind: "product",
      text: "A what-if has set other weights of this row. This one is rescaled so that the sum is 1.",
      formula: "p_j\\cdot\\frac{1 - \\sum_{\\mathrm{set}} p_i}{\\sum_{\\mathrm{rest}} p_i}",
      live: `${inTex(before[b])}\\cdot\\frac{${inTex(wanted)}}{${inTex(rest)}}`,
      also: [{ label: "before", value: before[b] }, { label: "factor", value: factor }],
    };
  },
  async weighted_sum({ trace, at: [h, a, c], operands: [p, v], constants }) {
    const [weights, values] = await Promise.all([vector(trace, p, [h, a]), trace.tensor(v)]);
    const rows = multiplied(
      { values: weights, node: (j) => ({ name: p, at: [h, a, j] }) },
      { values: Array.from(weights, (_, j) => at(values, h, j, c)), node: (j) => ({ name: v, at: [h, j, c] }) },
      labelled(trace, v),
    );
    const table = { columns: ["word", "attention", "value", "product"], rows };
    const live = products(rows);
    const factor = (constants.factors as Record<string, number> | undefined)?.[h];
    if (factor === undefined) {
      const text = "The sum of all values, each weighted by its attention (§3.2.1).";
      return { kind: "dot", text, formula: "z_c = \\sum_j p_j\\, v_{j,c}", live, ...table };
    }
    return {
      kind: "factor",
      text: "The weighted sum of all values (§3.2.1), times the factor that a what-if gives to this head.",
      formula: "z_c = f\\sum_j p_j\\, v_{j,c}",
      live: `${inTex(factor)}\\,(${live})`,
      ...table,
      also: [{ label: "factor", value: factor }],
    };
  },
  async concat({ trace, at: [p, c], operands: [z] }) {
    const d_k = trace.shape(z)[2];
    const head = Math.floor(c / d_k);
    const x = await one(trace, "x", z, [head, p, c % d_k]);
    return unchanged(x, `The heads are concatenated: channel ${c} is channel ${c % d_k} of head ${head + 1}.`);
  },
  async activation({ trace, name, at: [p, c], operands: [from], constants }) {
    const kind = String(constants.kind);
    if (kind !== "swiglu") {
      const x = await one(trace, `x (${kind})`, from, [p, c]);
      const { text, formula } = ACTIVATIONS[kind];
      return { kind: "activation", text, formula: formula("x"), live: formula(bracketed(x.value)), also: [x] };
    }
    const [g, x] = await Promise.all([one(trace, "g", from, [p, c]), one(trace, "x", from, [p, c + trace.shape(name)[1]])]);
    return {
      kind: "gate",
      text: "The gate g scales the value x (SwiGLU).",
      formula: "\\frac{g}{1 + e^{-g}}\\cdot x",
      live: `\\frac{${inTex(g.value)}}{1 + e^{-${bracketed(g.value)}}}\\cdot ${bracketed(x.value)}`,
      also: [g, x],
    };
  },
  async mean(about) {
    const rows = await channels(about);
    return {
      kind: "mean",
      text: "The sum of all channels, divided by their number.",
      formula: "\\mu = \\frac{1}{d}\\sum_i x_i",
      live: `\\frac{${addends(rows)}}{${rows.length}}`,
      columns: ["channel", "x"],
      rows: rows.map((x) => [x]),
    };
  },
  async variance(about) {
    const { trace, at, operands } = about;
    const [x, μ] = await Promise.all([channels(about), one(trace, "μ", operands[1], at)]);
    const rows = x.map((one) => [one, { label: one.label, value: (one.value - μ.value) ** 2 }]);
    return {
      kind: "variance",
      text: "The mean squared distance of the channels from their mean.",
      formula: "\\sigma^2 = \\frac{1}{d}\\sum_i (x_i - \\mu)^2",
      live: `\\frac{${addends(rows.map(([, square]) => square))}}{${rows.length}}`,
      columns: ["channel", "x", "(x − μ)²"],
      rows,
      also: [μ],
    };
  },
  async norm({ trace, at: [p, c], operands, weights: [scale, shift], constants }) {
    const [x, μ, σ2, γ, β] = await Promise.all([
      one(trace, "x", operands[0], [p, c]),
      one(trace, "μ", operands[1], [p]),
      one(trace, "σ²", operands[2], [p]),
      ...[scale, shift].map((name, i) => trace.weights(name).then((all) => ({ label: "γβ"[i], value: all[c] }))),
    ]);
    const ε = Number(constants.epsilon);
    return {
      kind: "norm",
      text: "Normalised to mean 0 and variance 1, then scaled and shifted by two learned numbers.",
      formula: "\\gamma\\,\\frac{x - \\mu}{\\sqrt{\\sigma^2 + \\varepsilon}} + \\beta",
      live: `${bracketed(γ.value)}\\cdot\\frac{${inTex(x.value)} - ${bracketed(μ.value)}}{\\sqrt{${inTex(σ2.value)} + ${inTex(ε)}}} + ${bracketed(β.value)}`,
      also: [x, μ, σ2, { label: "ε", value: ε }, γ, β],
    };
  },
};
