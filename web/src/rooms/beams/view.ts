import { flag, integer, text } from "../../app/fields";

export const beamsFields = {
  /** The required beginning of the answer. */
  prefix: text("", { perText: true }),
  /** The selected hypothesis; -1: none. */
  node: integer(-1, -1, 1e6, { perText: true }),
  /** Whether the tree is shown as a table. */
  table: flag(),
};
