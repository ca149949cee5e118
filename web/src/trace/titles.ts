/** Titles and places of numbers, in words. They depend on the name of a tensor; its lineage states how it is computed. */

import { word } from "../shared/numbers";
import type { Node } from "./lineage";
import { isCross } from "./attention";
import type { Trace } from "./trace";

/** The kind of a tensor: attention.q, norm.mean, logits. */
export function kindOf(trace: Trace, name: string): string {
  const names = name.split(".");
  const part = names.pop()!;
  const module = names.pop();
  if (module === undefined) return part;
  if (names.length === 0 && trace.stacks.some((stack) => stack.name === module)) return `stack.${part}`;
  const kind = ["attention", "residual", "norm"].find((one) => module.endsWith(one)) ?? module;
  return `${kind}.${part}`;
}

const PLACES: Record<string, string> = {
  self_attention: "self-attention",
  cross_attention: "cross-attention",
  feed_forward: "feed-forward",
  rotary: "rotary positions",
  output: "top",
  norm: "norm on top",
  head: "prediction head",
  head_norm: "prediction head, norm",
  logits: "linear & softmax",
  probabilities: "linear & softmax",
};

/** The place of a number in the model: decoder, layer 2, cross-attention, head 1. */
export function placeOf(trace: Trace, { name, at }: Node): string {
  const [stack, ...inside] = name.split(".");
  if (!trace.stacks.some((one) => one.name === stack)) return PLACES[stack];
  const names = [stack];
  if (inside[0] === "layers") names.push(`layer ${Number(inside[1]) + 1}`);
  const [module, part] = inside[0] === "layers" ? inside.slice(2) : inside;
  const bare = module.replace("_residual", "");
  names.push(PLACES[bare] ?? bare);
  if (part === "norm") names.push("norm");
  else if (bare !== module) names.push("add");
  if (trace.axes(name).includes("head")) names.push(`head ${at[0] + 1}`);
  return names.join(", ");
}

const TITLES: Record<string, string> = {
  "embedding.tokens": "Embedding of {position}, channel {c}",
  "embedding.scaled": "Scaled embedding of {position}, channel {c}",
  "embedding.positions": "Position {p}, channel {c}",
  "embedding.segments": "Segment of {position}, channel {c}",
  "embedding.sum": "Input of the {stack} at {position}, channel {c}",
  "embedding.output": "Input of the {stack} at {position}, channel {c}",
  "stack.rotary": "Angle at position {p}, channel {c}",
  "stack.output": "Output of the {stack} for {position}, channel {c}",
  "attention.input": "Input of {attention} at {position}, channel {c}",
  "attention.q_unrotated": "Query of {query}, {head}, channel {c}, before rotation",
  "attention.k_unrotated": "Key of {key}, {head}, channel {c}, before rotation",
  "attention.q": "Query of {query}, {head}, channel {c}",
  "attention.k": "Key of {key}, {head}, channel {c}",
  "attention.v": "Value of {key}, {head}, channel {c}",
  "attention.scores": "Score of {query} for {key}, {head}",
  "attention.scaled": "Scaled score of {query} for {key}, {head}",
  "attention.masked": "Masked score of {query} for {key}, {head}",
  "attention.probabilities": "Attention of {query} to {key}, {head}",
  "attention.z": "Output of {head} for {query}, channel {c}",
  "attention.concat": "Concatenated heads of {position}, channel {c}",
  "attention.output": "Output of {attention} for {position}, channel {c}",
  "feed_forward.input": "Input of the feed-forward network at {position}, channel {c}",
  "feed_forward.inner": "{unit} of the feed-forward network at {position}, before {activation}",
  "feed_forward.units": "Unit {c} of the feed-forward network at {position}",
  "feed_forward.output": "Output of the feed-forward network at {position}, channel {c}",
  "residual.input": "The vector of {position}, channel {c}",
  "residual.sublayer": "Sub-layer output at {position}, channel {c}",
  "residual.sum": "Add: the vector of {position}, channel {c}",
  "residual.output": "The vector of {position} after this sub-layer, channel {c}",
  "norm.input": "Input of the norm at {position}, channel {c}",
  "norm.mean": "Mean of the vector of {position}",
  "norm.variance": "Variance of the vector of {position}",
  "norm.output": "Norm: the vector of {position}, channel {c}",
  "head.output": "Prediction head at {position}, channel {c}",
  logits: "Logit of {entry} {where} {position}",
  probabilities: "Probability of {entry} {where} {position}",
};

/** The title of a number. */
export async function titleOf(trace: Trace, { name, at }: Node): Promise<string> {
  const kind = kindOf(trace, name);
  const values: Record<string, string | number> = { c: at[at.length - 1], p: at[0] + trace.config.positions.start };
  values.stack = name.split(".")[0];
  Object.assign(values, tokensOf(trace, { name, at }));
  values.head = `head ${at[0] + 1}`;
  if (kind.startsWith("attention.")) values.attention = attentionName(trace, name);
  if (kind === "feed_forward.inner") Object.assign(values, innerUnit(trace, name, at[1]));
  if (trace.axes(name).includes("vocabulary")) {
    values.entry = `${quoted((await trace.pieces([at[1]]))[0])}, entry ${at[1]},`;
    values.where = trace.top.causal ? "after" : "at"; // a causal stack predicts the next token
  }
  return TITLES[kind].replace(/\{(\w+)\}/g, (_, part: string) => String(values[part]));
}

const quoted = (token: string) => `“${word(token)}”`;

/** The tokens of a number, by axis: position, query, key. */
export function tokensOf(trace: Trace, { name, at }: Node): Record<string, string> {
  const sides = trace.sides(name);
  return Object.fromEntries(
    trace.axes(name).flatMap((axis, i) => (sides[axis] ? [[axis, quoted(trace.words(sides[axis])[at[i]] ?? "?")]] : [])),
  );
}

function attentionName(trace: Trace, name: string): string {
  const path = name.slice(0, name.lastIndexOf("."));
  const { query, key } = trace.sides(`${path}.probabilities`);
  if (isCross({ queries: query!, keys: key! })) return "cross-attention";
  return trace.step(`${path}.masked`)?.constants?.causal ? "masked self-attention" : "self-attention";
}

/** A number before the activation. A gated unit has two: all gates come first. */
function innerUnit(trace: Trace, name: string, c: number) {
  const units = name.replace(/inner$/, "units");
  const width = trace.shape(units)[1];
  const activation = String(trace.step(units)!.constants!.kind);
  if (trace.shape(name)[1] === width) return { activation, unit: `Unit ${c}` };
  return { activation, unit: c < width ? `Gate of unit ${c}` : `Value of unit ${c - width}` };
}
