/**
 * Changes to the model, as items of two fields of the address: `changes` and `cells`. The service takes them as its
 * `what_if`. docs/guides/what-if.md has the forms of the items.
 */

import type { WhatIf } from "../../shared/api";
import { attentionAt, isCross } from "../../trace/attention";
import type { Stack, Trace } from "../../trace/trace";

/** Parts that can be switched off, with their names on the page and the effect. */
export const PARTS = {
  positions: { title: "Positions", effect: "" },
  scale: {
    title: "÷ √dₖ",
    effect: "Without ÷ √dₖ the scores are √dₖ times as large, so softmax gives most of the weight to fewer tokens.",
  },
  "look-ahead-mask": { title: "Look-ahead mask", effect: "" },
  residuals: {
    title: "Residuals",
    effect: "Without residuals, each sub-layer replaces a vector instead of adding to it, so what the vector held before is lost.",
  },
  norms: {
    title: "Norms",
    effect: "Without norms, vectors keep the size that each layer gives them, and later layers get sizes that they never saw.",
  },
  "feed-forward": {
    title: "Feed-forward",
    effect: "Without feed-forward networks, positions only exchange vectors by attention, and nothing more is computed at each position.",
  },
} as const;

export type Part = keyof typeof PARTS;

const PATH = "[a-z_]+(?:\\.layers\\.\\d+)?(?:\\.[a-z_]+)*";
const NUMBER = "-?\\d+(?:\\.\\d+)?";
const WITHOUT = new RegExp(`^(${Object.keys(PARTS).join("|")})(?:@(${PATH}))?$`);
const HEAD = new RegExp(`^(remove|average|scale)@(${PATH})\\.(\\d{1,4})(?:=(${NUMBER}))?$`);
const CELL = new RegExp(`^(${PATH})\\.(\\d{1,4})\\.(\\d{1,6})\\.(\\d{1,6})=(${NUMBER})$`);

export interface HeadChange {
  how: "remove" | "average" | "scale";
  path: string;
  head: number;
  /** Of a scaled head. */
  factor: number;
}

export interface CellChange {
  path: string;
  head: number;
  query: number;
  key: number;
  value: number;
}

export function headFrom(item: string): HeadChange | null {
  const found = HEAD.exec(item);
  if (!found || (found[1] === "scale") !== (found[4] !== undefined)) return null;
  return { how: found[1] as HeadChange["how"], path: found[2], head: Number(found[3]), factor: Number(found[4] ?? 1) };
}

export const headItem = ({ how, path, head, factor }: HeadChange) =>
  `${how}@${path}.${head}${how === "scale" ? `=${factor}` : ""}`;

export function cellFrom(item: string): CellChange | null {
  const found = CELL.exec(item);
  if (!found) return null;
  const [head, query, key, value] = found.slice(2).map(Number);
  return { path: found[1], head, query, key, value };
}

export const cellItem = ({ path, head, query, key, value }: CellChange) => `${path}.${head}.${query}.${key}=${value}`;

export function withoutFrom(item: string): { part: Part; path: string } | null {
  const found = WITHOUT.exec(item);
  return found && { part: found[1] as Part, path: found[2] ?? "" };
}

const valid = (item: string) => withoutFrom(item) !== null || headFrom(item) !== null;

/** The items of the field `changes`. Invalid ones are ignored, as in all fields. */
export const changesOf = (field: string) => [...new Set(field.split(",").filter(valid))];

/** The items of the field `cells`. */
export const cellsOf = (field: string) => [...new Set(field.split(",").filter((item) => cellFrom(item)))];

/** The changes as the service takes them; null: the model is unchanged. */
export function whatIf(changes: string[], cells: string[]): WhatIf | null {
  if (!changes.length && !cells.length) return null;
  const found: Required<WhatIf> = { without: [], remove_heads: {}, average_heads: {}, scale_heads: {}, set_attention: {} };
  for (const item of changes) {
    const change = headFrom(item);
    if (!change) found.without.push(item);
    else if (change.how === "scale") (found.scale_heads[change.path] ??= {})[change.head] = change.factor;
    else (found[`${change.how}_heads`][change.path] ??= []).push(change.head);
  }
  for (const item of cells) {
    const { path, ...cell } = cellFrom(item)!;
    (found.set_attention[path] ??= []).push(cell);
  }
  return found;
}

/** Whether a part at a path is off: `here` by this item, `above` everywhere or in a part of the model around it. */
export function isOff(changes: string[], item: string): { here: boolean; above: boolean } {
  const { part, path } = withoutFrom(item)!;
  const covers = (other: string) => {
    const found = withoutFrom(other);
    return other !== item && found?.part === part && (found.path === "" || `${path}.`.startsWith(`${found.path}.`));
  };
  return { here: changes.includes(item), above: changes.some(covers) };
}

/** The change of a head, if any. */
export const headChange = (changes: string[], path: string, head: number) =>
  changes.map(headFrom).find((one) => one?.path === path && one.head === head) ?? null;

/** The changes with another one for a head; null: none. */
export function withHead(changes: string[], path: string, head: number, change: HeadChange | null): string[] {
  const rest = changes.filter((item) => {
    const found = headFrom(item);
    return found?.path !== path || found.head !== head;
  });
  return change ? [...rest, headItem(change)] : rest;
}

/** The cells with another probability for one; null: that of the model. */
export function withCell(cells: string[], at: Omit<CellChange, "value">, value: number | null): string[] {
  const rest = cells.filter((item) => {
    const found = cellFrom(item)!;
    return found.path !== at.path || found.head !== at.head || found.query !== at.query || found.key !== at.key;
  });
  return value === null ? rest : [...rest, cellItem({ ...at, value })];
}

/** The parts that a model has. */
export function partsOf(trace: Trace): Part[] {
  return (Object.keys(PARTS) as Part[]).filter(
    (part) =>
      (part !== "positions" || trace.config.positions.kind !== "none") && (part !== "look-ahead-mask" || trace.top.causal),
  );
}

/** A path in words: encoder, layer 1, self-attention. */
export function place(path: string): string {
  return path
    .replace(/\.layers\.(\d+)/, (_, layer) => `, layer ${Number(layer) + 1}`)
    .replace(/\.norm$/, ", norm")
    .replaceAll(".", ", ")
    .replace("_residual", "")
    .replace(/(self|cross)_attention/, "$1-attention")
    .replace("feed_forward", "feed-forward");
}

/** An item in words. */
export function described(item: string): string {
  const head = headFrom(item);
  if (head) {
    const how = head.how === "scale" ? `× ${head.factor}` : head.how === "remove" ? "removed" : "averaged";
    return `head ${head.head + 1} ${how} (${place(head.path)})`;
  }
  const cell = cellFrom(item);
  if (cell) return `weight ${cell.value} (${place(cell.path)}, head ${cell.head + 1}, query ${cell.query}, key ${cell.key})`;
  const { part, path } = withoutFrom(item)!;
  const name = part === "scale" ? "÷ √dₖ" : PARTS[part].title.toLowerCase();
  return `no ${name}${path ? ` (${place(path)})` : ""}`;
}

const EFFECTS = {
  remove: "A removed head adds nothing to the output of its attention.",
  average: "An averaged head attends equally to all tokens that it may see.",
  scale: "A scaled head counts more or less in the output of its attention.",
  cell: "The other weights of a row with a set cell keep their proportions, and the row still sums to 1.",
};

/** One sentence for each kind of change that says what it does in this model. */
export function effects(trace: Trace, changes: string[], cells: string[]): string[] {
  const found = changes.map((item) => {
    const head = headFrom(item);
    if (head) return EFFECTS[head.how];
    const { part, path } = withoutFrom(item)!;
    if (part === "positions")
      return trace.stacks.some(({ name, causal }) => !causal && (!path || `${path}.`.startsWith(`${name}.`)))
        ? "Without positions, the encoder gives each token the same vector in any order of the tokens."
        : "Without positions, a token sees which tokens came before it, but not in which order.";
    if (part === "look-ahead-mask")
      return (
        "Without the look-ahead mask, each position sees the tokens that come later. A model that was trained with the mask never saw them." +
        (trace.translates ? " While it writes, no later tokens exist, so the mask does not change its own translation." : "")
      );
    return PARTS[part].effect;
  });
  return [...new Set([...found, ...(cells.length ? [EFFECTS.cell] : [])])];
}

/** The parts that are computed at a box of the glass, as items. */
export function partsAt(trace: Trace, path: string, stack: Stack): string[] {
  const attention = attentionAt(trace, path);
  if (attention) return [`scale@${path}`, ...(stack.causal && !isCross(attention) ? [`look-ahead-mask@${path}`] : [])];
  if (path.endsWith(".feed_forward")) return [`feed-forward@${path}`];
  if (path.endsWith("_residual.sum")) return [`residuals@${path.slice(0, -".sum".length)}`];
  if (path.endsWith("_residual")) return [...(trace.config.norm === "pre" ? [] : [`residuals@${path}`]), `norms@${path}`];
  if (path.endsWith(".norm")) return [`norms@${path}`];
  if (path.endsWith(".embedding"))
    return [
      ...(trace.has(`${path}.positions`) ? [`positions@${path}`] : []),
      ...(trace.has(`${path}.norm.output`) ? [`norms@${path}`] : []),
    ];
  return [];
}
