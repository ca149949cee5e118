/**
 * The lineage of numbers: the rule by which each number of a trace follows from other numbers and from weights. There is
 * one rule for each kind of tensor. Only products and powers of the shown numbers are computed here.
 */

import { bracketed, inTex, word } from "../shared/numbers";
import { at, row, type Side, type Trace } from "./trace";

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

const of = (name: string, ...at: number[]): Node => ({ name, at });

type Made = Omit<Derivation, "node" | "value">;
type Rule = (trace: Trace, found: RegExpExecArray, at: number[]) => Promise<Made>;

/** The value of one number. */
export async function valueOf(trace: Trace, node: Node): Promise<number> {
  if (isLarge(node.name)) return (await trace.row(node.name, node.at[0]))[node.at[1]];
  return at(await trace.tensor(node.name), ...node.at);
}

/** Whether a tensor has a value for each entry of the vocabulary. These are loaded by position. */
export const isLarge = (name: string) => name === "logits" || name === "probabilities";

/** Whether a trace contains a number. */
export function exists(trace: Trace, { name, at }: Node): boolean {
  const shape = trace.shape(name);
  return trace.has(name) && at.length === shape.length && at.every((index, axis) => index < shape[axis]);
}

export async function derive(trace: Trace, node: Node): Promise<Derivation> {
  for (const [pattern, rule] of RULES) {
    const found = pattern.exec(node.name);
    if (found) {
      const [value, made] = await Promise.all([valueOf(trace, node), rule(trace, found, node.at)]);
      return { node, value, ...made };
    }
  }
  throw new Error(`No rule for the tensor ${node.name}.`);
}

// --- Names of places

const PARTS: Record<string, string> = {
  self_attention: "self-attention",
  cross_attention: "cross-attention",
  feed_forward: "feed-forward",
  embedding: "embedding",
  rotary: "rotary positions",
  head: "prediction head",
  head_norm: "prediction head, norm",
  logits: "linear & softmax",
  probabilities: "linear & softmax",
};

/** The place of a number in the model: decoder, layer 2, cross-attention, head 1. */
export function placeOf({ name, at }: Node): string {
  const [stack, ...inside] = name.split(".");
  if (stack !== "encoder" && stack !== "decoder") return PARTS[stack] ?? stack;
  const names = [stack];
  if (inside[0] === "layers") names.push(`layer ${Number(inside[1]) + 1}`);
  const [part, ...rest] = inside[0] === "layers" ? inside.slice(2) : inside;
  const around = part.endsWith("_residual");
  const bare = part.replace("_residual", "");
  if (part === "output") names.push("top");
  else if (part === "norm") names.push("norm on top");
  else names.push(PARTS[bare] ?? bare);
  if (rest[0] === "norm") names.push("norm");
  else if (around) names.push("add");
  if (bare.endsWith("attention") && !around && at.length === 3) names.push(`head ${at[0] + 1}`);
  return names.join(", ");
}

export const sideOf = (stack: string): Side => (stack === "encoder" ? "source" : "target");

const quoted = (trace: Trace, side: Side, at: number) => `“${word(trace.words(side)[at] ?? "?")}”`;

function place(trace: Trace, stack: string, at: number): string {
  return quoted(trace, trace.words(sideOf(stack)).length ? sideOf(stack) : "source", at);
}

// --- Helpers of the rules

const NOTHING = { columns: [], rows: [], also: [] };
const SHOWN = 2;

/** The first products of a sum, dots, and the last one. A line may break between them. */
function products(rows: Operand[][], bias?: Operand): string {
  const term = ([a, b]: Operand[]) => `{${bracketed(a.value)}\\cdot ${bracketed(b.value)}}`;
  const some = rows.length <= SHOWN + 1 ? rows.map(term) : [...rows.slice(0, SHOWN).map(term), "\\dots", term(rows[rows.length - 1])];
  return some.join(" + ") + (bias ? ` + ${bracketed(bias.value)}` : "");
}

function addends(values: Operand[]): string {
  const some =
    values.length <= SHOWN + 2
      ? values.map((one) => bracketed(one.value))
      : [...values.slice(0, SHOWN).map((one) => bracketed(one.value)), "\\dots", bracketed(values[values.length - 1].value)];
  return some.join(" + ");
}

interface Dot {
  title: string;
  text: string;
  formula: string;
  columns: [string, string, string, string];
  left: { values: ArrayLike<number>; node?: (i: number) => Node };
  right: { values: ArrayLike<number>; node?: (i: number) => Node };
  label: (i: number) => string;
  bias?: Operand;
}

function dot({ title, text, formula, columns, left, right, label, bias }: Dot): Made {
  const rows = Array.from(left.values, (a, i) => {
    const b = right.values[i];
    return [
      { label: label(i), value: a, node: left.node?.(i) },
      { label: label(i), value: b, node: right.node?.(i) },
      { label: label(i), value: a * b },
    ];
  });
  return { kind: "dot", title, text, formula, live: products(rows, bias), columns, rows, also: bias ? [bias] : [] };
}

/** A row of a weight matrix times a vector. */
async function linear(
  trace: Trace,
  about: Pick<Dot, "title" | "text" | "formula">,
  input: { name: string; at: number; symbol: string },
  parameter: string,
  out: number,
  bias: boolean,
): Promise<Made> {
  const [x, weights, biases] = await Promise.all([
    trace.tensor(input.name),
    trace.weights(`${parameter}.weight`, out),
    bias ? trace.weights(`${parameter}.bias`) : undefined,
  ]);
  return dot({
    ...about,
    columns: ["channel", input.symbol, "weight", "product"],
    left: { values: row(x, input.at), node: (i) => of(input.name, input.at, i) },
    right: { values: weights },
    label: String,
    bias: biases && { label: "bias", value: biases[out] },
  });
}

async function same(trace: Trace, node: Node, title: string, text: string): Promise<Made> {
  const value = await valueOf(trace, node);
  return { ...NOTHING, kind: "same", title, text, formula: "y = x", live: inTex(value), also: [{ label: "x", value, node }] };
}

// --- The rules, in the order of computation

const EMBEDDING = /^(encoder|decoder)\.embedding\.(\w+)$/;
const ATTENTION = /^((encoder|decoder)\.layers\.(\d+)\.(self|cross)_attention)\.(\w+)$/;
const FEED_FORWARD = /^((encoder|decoder)\.layers\.(\d+)\.feed_forward)\.(\w+)$/;
const RESIDUAL = /^((encoder|decoder)\.layers\.(\d+)\.(\w+))_residual\.(input|sublayer|sum|output)$/;
const NORM = /^((encoder|decoder)\.(?:.*\.)?norm|head_norm)\.(input|mean|variance|output)$/;
const STACK = /^(encoder|decoder)\.output$/;
const ROTARY = /^(encoder|decoder)\.rotary$/;
const HEAD = /^head\.output$/;

/** The steps of an embedding, without those that change nothing. */
export function embedded(trace: Trace, path: string): string[] {
  const scaled = trace.config.scale_embedding ? ["scaled"] : [];
  return ["tokens", ...scaled, "positions", "segments", "sum", "output"].filter((part) => trace.has(`${path}.${part}`));
}

async function embedding(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const [, stack, part] = found;
  const path = `${stack}.embedding`;
  const token = place(trace, stack, p);
  const side = trace.words(sideOf(stack)).length ? sideOf(stack) : "source";
  if (part === "tokens") {
    const id = trace.manifest.ids[side]![p];
    const weights = await trace.weights(`${path}.tokens.weight`, id);
    return {
      ...NOTHING,
      kind: "weight",
      title: `Embedding of ${token}, channel ${c}`,
      text: `A learned number: this token is row ${id} of the embedding table.`,
      formula: "x = E_{\\mathrm{id},\\,c}",
      live: inTex(weights[c]),
      also: [{ label: `E[${id}][${c}]`, value: weights[c] }],
    };
  }
  if (part === "scaled") {
    const tokens = of(`${path}.tokens`, p, c);
    if (!trace.config.scale_embedding) return same(trace, tokens, `Embedding of ${token}, channel ${c}`, "This model does not scale its embeddings.");
    const x = await valueOf(trace, tokens);
    return {
      ...NOTHING,
      kind: "product",
      title: `Embedding of ${token} times √d_model, channel ${c}`,
      text: "Scaled so that the position, at most 1, does not dominate (§3.4).",
      formula: "x\\cdot\\sqrt{d_\\mathrm{model}}",
      live: `${inTex(x)}\\cdot\\sqrt{${trace.config.d_model}}`,
      also: [
        { label: "x", value: x, node: tokens },
        { label: "√d_model", value: Math.sqrt(trace.config.d_model) },
      ],
    };
  }
  if (part === "positions") return position(trace, stack, p, c);
  if (part === "segments") {
    const weights = await trace.weights(`${path}.segments.weight`, 0);
    return {
      ...NOTHING,
      kind: "weight",
      title: `Segment of ${token}, channel ${c}`,
      text: "A learned number for the text to which the word belongs: here the first.",
      formula: "S_{0,\\,c}",
      live: inTex(weights[c]),
      also: [{ label: `S[0][${c}]`, value: weights[c] }],
    };
  }
  const parts = embedded(trace, path).filter((name) => ["tokens", "scaled", "positions", "segments"].includes(name));
  if (parts.includes("scaled")) parts.splice(parts.indexOf("tokens"), 1);
  if (part === "sum" || (part === "output" && !trace.has(`${path}.norm.output`))) {
    const title = `Input of the ${stack} at ${token}, channel ${c}`;
    if (parts.length === 1) return same(trace, of(`${path}.${parts[0]}`, p, c), title, "The position is not added here: it rotates queries and keys.");
    const values = await Promise.all(parts.map((name) => valueOf(trace, of(`${path}.${name}`, p, c))));
    const also = parts.map((name, i) => ({ label: name, value: values[i], node: of(`${path}.${name}`, p, c) }));
    return {
      ...NOTHING,
      kind: "sum",
      title,
      text: "The word and its position are added to one vector (§3.5).",
      formula: parts.includes("segments") ? "x + PE + S" : "x + PE",
      live: addends(also),
      also,
    };
  }
  return same(trace, of(`${path}.norm.output`, p, c), `Input of the ${stack} at ${token}, channel ${c}`, "The normalised sum.");
}

async function position(trace: Trace, stack: string, p: number, c: number): Promise<Made> {
  const { kind, start } = trace.config.positions;
  const title = `Position ${p + start}, channel ${c}`;
  if (kind === "learned") {
    const weights = await trace.weights(`${stack}.embedding.positions.table`, p);
    return {
      ...NOTHING,
      kind: "weight",
      title,
      text: "A learned number: each position is a row of a table.",
      formula: "PE_{p,\\,c}",
      live: inTex(weights[c]),
      also: [{ label: `PE[${p}][${c}]`, value: weights[c] }],
    };
  }
  const text = "A wave along the sentence that slows from channel to channel (§3.5). It is not learned.";
  return wave(trace, title, text, p, c, trace.config.d_model);
}

/** Sine or cosine of a position. */
function wave(trace: Trace, title: string, text: string, p: number, c: number, width: number): Made {
  const { kind, frequencies, min_timescale, max_timescale, start } = trace.config.positions;
  const half = Math.ceil(width / 2);
  const sine = kind === "interleaved" ? c % 2 === 0 : c < half;
  const i = kind === "interleaved" ? Math.floor(c / 2) : c % half;
  const steps = Math.max(Math.floor(width / 2) - 1, 1);
  const timescale =
    frequencies === "paper"
      ? max_timescale ** ((2 * i) / width)
      : min_timescale * (max_timescale / min_timescale) ** (i / steps);
  const curve = sine ? "\\sin" : "\\cos";
  return {
    ...NOTHING,
    kind: "wave",
    title,
    text,
    formula: frequencies === "paper" ? `${curve}\\!\\left(p \\,/\\, ${max_timescale}^{2i/${width}}\\right)` : `${curve}(p / t_i)`,
    live: `${curve}(${p + start} / ${inTex(timescale)})`,
    also: [
      { label: sine ? "p (sine)" : "p (cosine)", value: p + start },
      { label: "timescale", value: timescale },
    ],
  };
}

async function rotary(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const stack = found[1] as "encoder" | "decoder";
  const text = "Sine or cosine of the angle that rotates queries and keys. It is not learned.";
  const { start } = trace.config.positions;
  return wave(trace, `Angle at position ${p + start}, channel ${c}`, text, p, c, trace.config.d_model / trace.config[stack].heads);
}

async function attention(trace: Trace, found: RegExpExecArray, index: number[]): Promise<Made> {
  const [, path, stack, layer, which, part] = found;
  const cross = which === "cross";
  const heads = trace.config[stack as "encoder" | "decoder"].heads;
  const d_k = trace.config.d_model / heads;
  const kind = cross ? "cross-attention" : stack === "decoder" ? "masked self-attention" : "self-attention";
  const where = `${stack} layer ${Number(layer) + 1}, ${kind}`;
  const keyStack = cross ? "encoder" : stack;
  if (part === "input" || part === "output" || part === "concat") {
    const [p, c] = index;
    const token = place(trace, stack, p);
    if (part === "input") {
      const pre = trace.config.norm === "pre";
      return same(
        trace,
        of(pre ? `${path}_residual.norm.output` : `${path}_residual.input`, p, c),
        `Input of ${kind} at ${token}, channel ${c}`,
        pre ? "The normalised vector of the token." : "The vector of the token.",
      );
    }
    if (part === "concat") {
      const head = Math.floor(c / d_k);
      return same(
        trace,
        of(`${path}.z`, head, p, c % d_k),
        `Concatenated heads of ${token}, channel ${c}`,
        `The heads are concatenated: channel ${c} is channel ${c % d_k} of head ${head + 1}.`,
      );
    }
    return linear(
      trace,
      {
        title: `Output of ${where} for ${token}, channel ${c}`,
        text: "A learned matrix W^O mixes all heads (§3.2.2).",
        formula: "\\sum_i \\mathrm{concat}_i\\, W^O_{i,c}",
      },
      { name: `${path}.concat`, at: p, symbol: "concat" },
      `${path}.output`,
      c,
      trace.config.attention_bias,
    );
  }
  const [h, a, b] = index;
  const head = `head ${h + 1}`;
  const query = place(trace, stack, a);
  if (part === "q" || part === "k" || part === "v") {
    const rotary = trace.has(`${path}.${part}_unrotated`);
    const token = place(trace, part === "q" ? stack : keyStack, a);
    const name = { q: "Query", k: "Key", v: "Value" }[part];
    const title = `${name} of ${token}, ${head}, channel ${b}`;
    if (rotary && part !== "v") return rotated(trace, path, stack, part, index, title);
    return projected(trace, path, cross, part, index, title, trace.config.attention_bias, heads);
  }
  if (part.endsWith("_unrotated")) {
    const letter = part[0] as "q" | "k";
    return projected(trace, path, cross, letter, index, `${letter} of ${query}, ${head}, channel ${b}, before rotation`, trace.config.attention_bias, heads);
  }
  if (part === "z") {
    const [p, v] = await trace.tensors([`${path}.probabilities`, `${path}.v`]);
    const weights = row(p, h, a);
    return dot({
      title: `Output of ${head} for ${query}, channel ${b}`,
      text: "The sum of all values, each weighted by its attention (§3.2.1).",
      formula: "z_c = \\sum_j p_j\\, v_{j,c}",
      columns: ["word", "attention", "value", "product"],
      left: { values: weights, node: (j) => of(`${path}.probabilities`, h, a, j) },
      right: { values: Array.from(weights, (_, j) => at(v, h, j, b)), node: (j) => of(`${path}.v`, h, j, b) },
      label: (j) => word(trace.words(sideOf(keyStack))[j] ?? trace.words("source")[j] ?? String(j)),
    });
  }
  const key = place(trace, keyStack, b);
  if (part === "scores") {
    const [q, k] = await trace.tensors([`${path}.q`, `${path}.k`]);
    return dot({
      title: `Score of ${query} for ${key}, ${head}`,
      text: `The dot product of the query of ${query} and the key of ${key}.`,
      formula: "q\\cdot k = \\sum_c q_c\\, k_c",
      columns: ["channel", "q", "k", "product"],
      left: { values: row(q, h, a), node: (c) => of(`${path}.q`, h, a, c) },
      right: { values: row(k, h, b), node: (c) => of(`${path}.k`, h, b, c) },
      label: String,
    });
  }
  if (part === "scaled") {
    const score = await valueOf(trace, of(`${path}.scores`, h, a, b));
    return {
      ...NOTHING,
      kind: "quotient",
      title: `Scaled score of ${query} for ${key}, ${head}`,
      text: "Divided by √d_k, because large scores saturate the softmax (§3.2.1).",
      formula: "\\frac{q\\cdot k}{\\sqrt{d_k}}",
      live: `\\frac{${inTex(score)}}{\\sqrt{${d_k}}}`,
      also: [
        { label: "q·k", value: score, node: of(`${path}.scores`, h, a, b) },
        { label: "√d_k", value: Math.sqrt(d_k) },
      ],
    };
  }
  if (part === "masked") {
    const [scaled, masked] = await Promise.all([
      valueOf(trace, of(`${path}.scaled`, h, a, b)),
      valueOf(trace, of(`${path}.masked`, h, a, b)),
    ]);
    const hidden = masked === -Infinity;
    return {
      ...NOTHING,
      kind: "mask",
      title: `Masked score of ${query} for ${key}, ${head}`,
      text: hidden
        ? `${key} is after ${query}, so it is hidden: minus infinity becomes a weight of 0 (§3.2.3).`
        : "Visible: the score does not change.",
      formula: hidden ? "-\\infty" : "\\frac{q\\cdot k}{\\sqrt{d_k}}",
      live: hidden ? "-\\infty" : inTex(scaled),
      also: [
        { label: "scaled score", value: scaled, node: of(`${path}.scaled`, h, a, b) },
        { label: hidden ? "hidden" : "visible", value: hidden ? 0 : 1 },
      ],
    };
  }
  // probabilities
  const masked = row(await trace.tensor(`${path}.masked`), h, a);
  const words = trace.words(sideOf(keyStack)).length ? trace.words(sideOf(keyStack)) : trace.words("source");
  return softmax(
    masked,
    b,
    (j) => word(words[j]),
    (j) => of(`${path}.masked`, h, a, j),
    `Attention of ${query} to ${key}, ${head}`,
    "The softmax turns scores into positive weights with sum 1.",
    "word",
  );
}

function softmax(
  scores: ArrayLike<number>,
  chosen: number,
  label: (j: number) => string,
  node: (j: number) => Node,
  title: string,
  text: string,
  what: string,
): Made {
  let most = -Infinity;
  for (let j = 0; j < scores.length; j++) most = Math.max(most, scores[j]);
  const rows = Array.from(scores, (score, j) => [
    { label: label(j), value: score, node: node(j) },
    { label: label(j), value: score === -Infinity ? 0 : Math.exp(score - most) },
  ]);
  const total = rows.reduce((sum, [, power]) => sum + power.value, 0);
  return {
    kind: "softmax",
    title,
    text,
    formula: "\\frac{e^{s_j - \\max s}}{\\sum_i e^{s_i - \\max s}}",
    live: `\\frac{e^{${inTex(scores[chosen])} - ${bracketed(most)}}}{${inTex(total)}}`,
    columns: [what, "score", "e^(score − max)"],
    rows,
    also: [
      { label: "this one", value: rows[chosen][1].value },
      { label: "sum of all", value: total },
    ],
  };
}

async function projected(
  trace: Trace,
  path: string,
  cross: boolean,
  part: "q" | "k" | "v",
  [h, a, b]: number[],
  title: string,
  bias: boolean,
  heads: number,
): Promise<Made> {
  const width = trace.config.d_model;
  const stacked = cross ? { q: 0, k: 0, v: 1 }[part] : { q: 0, k: 1, v: 2 }[part];
  const out = stacked * width + h * (width / heads) + b;
  const matrix = cross ? (part === "q" ? "query" : "key_value") : "query_key_value";
  const fromMemory = cross && part !== "q";
  const letter = part.toUpperCase();
  const vector = fromMemory ? "its vector from the encoder" : "its vector";
  return linear(
    trace,
    {
      title,
      text: {
        q: "The query of a token: its vector times a learned matrix.",
        k: `The key of a token: ${vector} times a learned matrix.`,
        v: `The value of a token: ${vector} times a learned matrix.`,
      }[part],
      formula: `${part}_c = \\sum_i x_i\\, W^${letter}_{i,c}`,
    },
    { name: fromMemory ? "encoder.output" : `${path}.input`, at: a, symbol: fromMemory ? "memory" : "x" },
    `${path}.${matrix}`,
    out,
    bias,
  );
}

async function rotated(trace: Trace, path: string, stack: string, part: "q" | "k", [h, a, b]: number[], title: string): Promise<Made> {
  const name = `${path}.${part}_unrotated`;
  const [x, waves] = await trace.tensors([name, `${stack}.rotary`]);
  const half = x.shape[2] / 2;
  const pair = b % half;
  const first = b < half;
  const [left, right] = [at(x, h, a, pair), at(x, h, a, pair + half)];
  const [sine, cosine] = [at(waves, a, pair), at(waves, a, pair + half)];
  return {
    ...NOTHING,
    kind: "turn",
    title,
    text: "The angle of the position rotates pairs of channels, so that scores depend on the distance of two tokens.",
    formula: first ? "l\\cos\\theta - r\\sin\\theta" : "r\\cos\\theta + l\\sin\\theta",
    live: first
      ? `${bracketed(left)}\\cdot ${bracketed(cosine)} - ${bracketed(right)}\\cdot ${bracketed(sine)}`
      : `${bracketed(right)}\\cdot ${bracketed(cosine)} + ${bracketed(left)}\\cdot ${bracketed(sine)}`,
    also: [
      { label: first ? "left" : "right", value: first ? left : right, node: of(name, h, a, first ? pair : pair + half) },
      { label: "cos", value: cosine, node: of(`${stack}.rotary`, a, pair + half) },
      { label: first ? "right" : "left", value: first ? right : left, node: of(name, h, a, first ? pair + half : pair) },
      { label: first ? "−sin" : "sin", value: first ? -sine : sine, node: of(`${stack}.rotary`, a, pair) },
    ],
  };
}

async function feedForward(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const [, path, stack, , part] = found;
  const token = place(trace, stack, p);
  if (part === "input") {
    const pre = trace.config.norm === "pre";
    return same(
      trace,
      of(pre ? `${path}_residual.norm.output` : `${path}_residual.input`, p, c),
      `Input of the feed-forward network at ${token}, channel ${c}`,
      pre ? "The normalised vector of the token." : "The vector of the token.",
    );
  }
  if (part === "inner")
    return linear(
      trace,
      {
        title: `${inner(trace, path, c)} of the feed-forward network at ${token}, before ${trace.config.activation}`,
        text: "Each unit detects one pattern in the vector of the token (§3.3).",
        formula: "\\sum_i x_i\\, W_{1\\,i,c} + b_{1\\,c}",
      },
      { name: `${path}.input`, at: p, symbol: "x" },
      `${path}.inner`,
      c,
      true,
    );
  if (part === "units") return unit(trace, path, p, c, token);
  return linear(
    trace,
    {
      title: `Output of the feed-forward network at ${token}, channel ${c}`,
      text: "The contribution of all units to this channel.",
      formula: "\\sum_j u_j\\, W_{2\\,j,c} + b_{2\\,c}",
    },
    { name: `${path}.units`, at: p, symbol: "unit" },
    `${path}.outer`,
    c,
    true,
  );
}

const ACTIVATIONS: Record<string, { text: string; formula: (x: string) => string }> = {
  relu: { text: "Negative inputs become 0 (ReLU).", formula: (x) => `\\max(0, ${x})` },
  gelu: { text: "Strongly negative inputs become almost 0 (GELU).", formula: (x) => `${x}\\cdot\\Phi(${x})` },
  "gelu-tanh": {
    text: "Strongly negative inputs become almost 0 (GELU, approximated with tanh).",
    formula: (x) => `\\tfrac{1}{2}${x}\\left(1 + \\tanh\\left(\\sqrt{2/\\pi}\\,(${x} + 0.044715\\cdot ${x}^3)\\right)\\right)`,
  },
  swish: { text: "Strongly negative inputs become almost 0 (swish).", formula: (x) => `\\frac{${x}}{1 + e^{-${x}}}` },
};

/** The name of a number before the activation. A gated unit has two: all gates come first. */
export function inner(trace: Trace, path: string, c: number): string {
  const width = trace.shape(`${path}.units`)[1];
  if (trace.config.activation !== "swiglu") return `Unit ${c}`;
  return c < width ? `Gate of unit ${c}` : `Value of unit ${c - width}`;
}

async function unit(trace: Trace, path: string, p: number, c: number, token: string): Promise<Made> {
  const { activation } = trace.config;
  const title = `Unit ${c} of the feed-forward network at ${token}`;
  if (activation === "swiglu") {
    const width = trace.shape(`${path}.units`)[1];
    const [gate, value] = await Promise.all([
      valueOf(trace, of(`${path}.inner`, p, c)),
      valueOf(trace, of(`${path}.inner`, p, c + width)),
    ]);
    return {
      ...NOTHING,
      kind: "gate",
      title,
      text: "The gate g scales the value x (SwiGLU).",
      formula: "\\frac{g}{1 + e^{-g}}\\cdot x",
      live: `\\frac{${inTex(gate)}}{1 + e^{-${bracketed(gate)}}}\\cdot ${bracketed(value)}`,
      also: [
        { label: "g", value: gate, node: of(`${path}.inner`, p, c) },
        { label: "x", value, node: of(`${path}.inner`, p, c + width) },
      ],
    };
  }
  return activated(trace, activation, of(`${path}.inner`, p, c), title);
}

async function activated(trace: Trace, activation: string, node: Node, title: string): Promise<Made> {
  const x = await valueOf(trace, node);
  const { text, formula } = ACTIVATIONS[activation];
  const also = [{ label: `x (${activation})`, value: x, node }];
  return { ...NOTHING, kind: "activation", title, text, formula: formula("x"), live: formula(bracketed(x)), also };
}

async function residual(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const [, path, stack, layer, which, part] = found;
  const own = `${path}_residual`;
  const token = place(trace, stack, p);
  const pre = trace.config.norm === "pre";
  if (part === "input") {
    const before = trace.has(`${stack}.layers.${layer}.cross_attention.q`)
      ? ["self_attention", "cross_attention", "feed_forward"]
      : ["self_attention", "feed_forward"];
    const i = before.indexOf(which);
    const from =
      i > 0
        ? `${stack}.layers.${layer}.${before[i - 1]}_residual.output`
        : layer === "0"
          ? `${stack}.embedding.output`
          : `${stack}.layers.${Number(layer) - 1}.feed_forward_residual.output`;
    return same(trace, of(from, p, c), `The vector of ${token}, channel ${c}`, "The output of the previous step.");
  }
  if (part === "sublayer") return same(trace, of(`${path}.output`, p, c), `Sub-layer output at ${token}, channel ${c}`, "The output of the sub-layer.");
  if (part === "output")
    return same(
      trace,
      of(pre ? `${own}.sum` : `${own}.norm.output`, p, c),
      `The vector of ${token} after this sub-layer, channel ${c}`,
      pre ? "The sum." : "The normalised sum.",
    );
  const [x, more] = await Promise.all([valueOf(trace, of(`${own}.input`, p, c)), valueOf(trace, of(`${own}.sublayer`, p, c))]);
  const also = [
    { label: "x", value: x, node: of(`${own}.input`, p, c) },
    { label: "sub-layer", value: more, node: of(`${own}.sublayer`, p, c) },
  ];
  return {
    ...NOTHING,
    kind: "sum",
    title: `Add: the vector of ${token}, channel ${c}`,
    text: "The output of the sub-layer is added to its input (§3.1).",
    formula: "x + \\mathrm{Sublayer}(x)",
    live: addends(also),
    also,
  };
}

async function norm(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const [, path, inside, part] = found;
  const stack = inside ?? "encoder";
  const token = place(trace, stack, p);
  if (part === "input" && path === "head_norm") {
    const activation = trace.config.activation.replace("swiglu", "swish");
    return activated(trace, activation, of("head.output", p, c), `Input of the norm at ${token}, channel ${c}`);
  }
  if (part === "input") {
    const own = path.slice(0, -".norm".length);
    const layers = trace.config[stack as "encoder" | "decoder"].layers;
    const from = own.endsWith("_residual")
      ? `${own}.${trace.config.norm === "pre" ? "input" : "sum"}`
      : own.endsWith("embedding")
        ? `${own}.sum`
        : `${stack}.layers.${layers - 1}.feed_forward_residual.output`;
    return same(trace, of(from, p, c), `Input of the norm at ${token}, channel ${c}`, "The vector before normalisation.");
  }
  const x = row(await trace.tensor(`${path}.input`), p);
  if (part === "mean") {
    const rows = Array.from(x, (value, i) => [{ label: String(i), value, node: of(`${path}.input`, p, i) }]);
    return {
      kind: "mean",
      title: `Mean of the vector of ${token}`,
      text: "The sum of all channels, divided by their number.",
      formula: "\\mu = \\frac{1}{d}\\sum_i x_i",
      live: `\\frac{${addends(rows.map(([one]) => one))}}{${x.length}}`,
      columns: ["channel", "x"],
      rows,
      also: [],
    };
  }
  const mean = await valueOf(trace, of(`${path}.mean`, p));
  if (part === "variance") {
    const rows = Array.from(x, (value, i) => [
      { label: String(i), value, node: of(`${path}.input`, p, i) },
      { label: String(i), value: (value - mean) ** 2 },
    ]);
    return {
      kind: "variance",
      title: `Variance of the vector of ${token}`,
      text: "The mean squared distance of the channels from their mean.",
      formula: "\\sigma^2 = \\frac{1}{d}\\sum_i (x_i - \\mu)^2",
      live: `\\frac{${addends(rows.map(([, square]) => square))}}{${x.length}}`,
      columns: ["channel", "x", "(x − μ)²"],
      rows,
      also: [{ label: "μ", value: mean, node: of(`${path}.mean`, p) }],
    };
  }
  const [variance, weights, biases] = await Promise.all([
    valueOf(trace, of(`${path}.variance`, p)),
    trace.weights(`${path}.weight`),
    trace.weights(`${path}.bias`),
  ]);
  return {
    ...NOTHING,
    kind: "norm",
    title: `Norm: the vector of ${token}, channel ${c}`,
    text: "Normalised to mean 0 and variance 1, then scaled and shifted by two learned numbers.",
    formula: "\\gamma\\,\\frac{x - \\mu}{\\sqrt{\\sigma^2 + \\varepsilon}} + \\beta",
    live: `${bracketed(weights[c])}\\cdot\\frac{${inTex(x[c])} - ${bracketed(mean)}}{\\sqrt{${inTex(variance)} + ${inTex(trace.config.norm_epsilon)}}} + ${bracketed(biases[c])}`,
    also: [
      { label: "x", value: x[c], node: of(`${path}.input`, p, c) },
      { label: "μ", value: mean, node: of(`${path}.mean`, p) },
      { label: "σ²", value: variance, node: of(`${path}.variance`, p) },
      { label: "ε", value: trace.config.norm_epsilon },
      { label: "γ", value: weights[c] },
      { label: "β", value: biases[c] },
    ],
  };
}

async function top(trace: Trace, found: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  const [, stack] = found;
  const layers = trace.config[stack as "encoder" | "decoder"].layers;
  const from = trace.has(`${stack}.norm.output`) ? `${stack}.norm.output` : `${stack}.layers.${layers - 1}.feed_forward_residual.output`;
  return same(trace, of(from, p, c), `Output of the ${stack} for ${place(trace, stack, p)}, channel ${c}`, "The top of the stack.");
}

async function head(trace: Trace, _: RegExpExecArray, [p, c]: number[]): Promise<Made> {
  return linear(
    trace,
    {
      title: `Prediction head at ${place(trace, "encoder", p)}, channel ${c}`,
      text: "The top vector times a learned matrix.",
      formula: "\\sum_i x_i\\, W_{i,c} + b_c",
    },
    { name: "encoder.output", at: p, symbol: "x" },
    "head",
    c,
    true,
  );
}

/** A decoder predicts the next token, an encoder the token at a position. */
const where = (trace: Trace) => (trace.hasStack("decoder") ? "after" : "at");

/** An entry of the vocabulary, in words. */
const entry = async (trace: Trace, v: number) => `“${word((await trace.pieces([v]))[0])}”, entry ${v},`;

async function logit(trace: Trace, _: RegExpExecArray, [p, v]: number[]): Promise<Made> {
  const name = trace.has("head_norm.output") ? "head_norm.output" : trace.has("decoder.output") ? "decoder.output" : "encoder.output";
  return linear(
    trace,
    {
      title: `Logit of ${await entry(trace, v)} ${where(trace)} ${place(trace, "decoder", p)}`,
      text: "The dot product of the top vector and the row of this entry.",
      formula: "\\sum_i x_i\\, E_{v,i}",
    },
    { name, at: p, symbol: "x" },
    "classifier",
    v,
    trace.config.classifier_bias,
  );
}

async function probability(trace: Trace, _: RegExpExecArray, [p, v]: number[]): Promise<Made> {
  const scores = await trace.row("logits", p);
  const made = softmax(
    scores,
    v,
    String,
    (j) => of("logits", p, j),
    `Probability of ${await entry(trace, v)} ${where(trace)} ${place(trace, "decoder", p)}`,
    "The softmax turns the logits of all entries into probabilities.",
    "entry",
  );
  return { ...made, rows: [], columns: [], also: [{ label: "logit", value: scores[v], node: of("logits", p, v) }, ...made.also] };
}

const RULES: [RegExp, Rule][] = [
  [EMBEDDING, embedding],
  [ATTENTION, attention],
  [FEED_FORWARD, feedForward],
  [RESIDUAL, residual],
  [NORM, norm],
  [STACK, top],
  [ROTARY, rotary],
  [HEAD, head],
  [/^logits$/, logit],
  [/^probabilities$/, probability],
];
