import { integer, text } from "../../app/fields";

export const glassFields = {
  /** The selected token: s3 or t5. */
  word: text("", { perText: true }),
  /** The name of the open sub-layer. */
  open: text(),
  /** The heads shown in it: 0-2-5; empty: the first. */
  heads: text(),
  /** The position of the selected key; -1: the one with the largest weight. */
  key: integer(-1, -1, 1e6, { perText: true }),
  /** Parts and heads of the model that are changed; the forms are in docs/guides/what-if.md. */
  changes: text(),
  /** Cells of attention that are set. */
  cells: text("", { perText: true }),
  /** The number that is explained: name@1,2,3. */
  why: text("", { perText: true }),
};

/** Parse the name of a token. */
export function tokenAt(name: string): { side: "source" | "target"; at: number } | null {
  const found = /^([st])(\d+)$/.exec(name);
  return found && { side: found[1] === "s" ? "source" : "target", at: Number(found[2]) };
}
