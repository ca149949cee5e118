/** The attentions of a trace, by the names of their tensors. */

import type { Side, StackName, Trace } from "./trace";

export type AttentionKind = "self" | "cross";

export interface Attention {
  /** encoder.layers.0.self_attention */
  path: string;
  stack: StackName;
  layer: number;
  kind: AttentionKind;
  queries: Side;
  keys: Side;
}

const NAME = /^(encoder|decoder)\.layers\.(\d+)\.(self|cross)_attention$/;

export function attentionFrom(path: string): Attention | null {
  const found = NAME.exec(path);
  if (!found) return null;
  const stack = found[1] as StackName;
  const kind = found[3] as AttentionKind;
  const queries: Side = stack === "encoder" ? "source" : "target";
  return { path, stack, layer: Number(found[2]), kind, queries, keys: kind === "cross" ? "source" : queries };
}

const known = new WeakMap<Trace, Attention[]>();

/** All attentions of a trace, in the order of computation. */
export function attentions(trace: Trace): Attention[] {
  if (!known.has(trace)) {
    const names = trace.manifest.tensors.map(({ name }) => name).filter((name) => name.endsWith("_attention.probabilities"));
    known.set(trace, names.map((name) => attentionFrom(name.slice(0, -".probabilities".length))!));
  }
  return known.get(trace)!;
}
