/** The attentions of a trace. */

import type { Side, Stack, Trace } from "./trace";

export interface Attention {
  /** encoder.layers.0.self_attention */
  path: string;
  stack: Stack;
  layer: number;
  queries: Side;
  keys: Side;
}

/** Whether queries and keys are tokens of different sides. */
export const isCross = ({ queries, keys }: Pick<Attention, "queries" | "keys">) => queries !== keys;

const known = new WeakMap<Trace, Attention[]>();

/** All attentions of a trace, in the order of computation. */
export function attentions(trace: Trace): Attention[] {
  if (!known.has(trace)) known.set(trace, trace.stacks.flatMap((stack) => attentionsOf(trace, stack)));
  return known.get(trace)!;
}

function attentionsOf(trace: Trace, stack: Stack): Attention[] {
  const layers = Array.from({ length: stack.layers }, (_, layer) =>
    stack.sublayers.flatMap((part) => {
      const path = `${stack.name}.layers.${layer}.${part}`;
      const { query, key } = trace.sides(`${path}.probabilities`);
      return query && key ? [{ path, stack, layer, queries: query, keys: key }] : [];
    }),
  );
  return layers.flat();
}

export const attentionAt = (trace: Trace, path: string) => attentions(trace).find((one) => one.path === path);
