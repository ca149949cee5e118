/** The view: everything that the page shows, as values that its address repeats. A link reproduces it, back returns. */

import { beamsFields } from "../rooms/beams/view";
import { glassFields } from "../rooms/glass/view";
import { tourFields } from "../rooms/tour/view";
import { translateFields } from "../rooms/translate/view";
import type { Search } from "../shared/api";
import { firstValues, flag, fromQuery, integer, number, perText, text, toQuery, type ValuesOf } from "./fields";

const FIELDS = {
  room: text("translate"),
  /** A served model; empty: the first. */
  model: text(),
  text: text("The animal didn't cross the street because it was too tired."),
  /** The target that the reader chose; empty: the model's own. */
  target: text("", { perText: true }),
  beams: integer(1, 1, 16, { formerly: "beam" }),
  length_penalty: number(1, 0, 10),
  sample: flag(),
  temperature: number(1, 0.05, 5),
  top_k: integer(0, 0, 1000),
  top_p: number(1, 0.01, 1),
  seed: integer(1, 0, 2 ** 31 - 1),
  /** The step of the animation; -1: the last. */
  step: integer(-1, -1, 1e6, { perText: true }),
  ...translateFields,
  ...glassFields,
  ...beamsFields,
  ...tourFields,
};

export type View = ValuesOf<typeof FIELDS>;

export const FIRST: View = firstValues(FIELDS);

/** Changes that another text, model or search makes to the view. */
export const RESET: Partial<View> = perText(FIELDS);

export const fromAddress = (query: string): View => fromQuery(FIELDS, query);

export const toAddress = (view: View): string => toQuery(FIELDS, view);

export const searchOf = ({ beams, length_penalty, sample, temperature, top_k, top_p, seed }: View): Search => ({
  beams,
  length_penalty,
  sample,
  temperature,
  top_k,
  top_p,
  seed,
});

/** Where the view is written: the browser's address, or the memory of a widget. */
export interface Address {
  read(): string;
  write(query: string, how: How): void;
  /** Call a function after the address has changed by other means. Return a function that ends this. */
  listen(changed: () => void): () => void;
}

/** How a change enters the history: as a step to return from, or in place of the last one. */
export type How = "push" | "replace";

export const browserAddress: Address = {
  read: () => location.search,
  write(query, how) {
    const address = `${location.pathname}${query}`;
    if (how === "push") history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  },
  listen(changed) {
    addEventListener("popstate", changed);
    return () => removeEventListener("popstate", changed);
  },
};

export function memoryAddress(query = ""): Address {
  return { read: () => query, write: (changed) => (query = changed), listen: () => () => {} };
}

export class ViewState {
  readonly now: View;
  readonly close: () => void;

  constructor(private address: Address) {
    const now = $state<View>(fromAddress(address.read()));
    this.now = now;
    this.close = address.listen(() => Object.assign(now, fromAddress(address.read())));
  }

  readonly go = (change: Partial<View>, how: How = "push"): void => {
    Object.assign(this.now, change);
    const query = toAddress(this.now);
    if (query !== toAddress(fromAddress(this.address.read()))) this.address.write(query, how);
  };
}
