/** What is on screen, all of it, and the address that says the same. A link reproduces the view; back goes back. */

import type { Search } from "../shared/api";

export type Room = "translate" | "glass" | "beams";
export const ROOMS: Room[] = ["translate", "glass", "beams"];

export interface View extends Search {
  room: Room;
  /** Empty: the first there is. */
  model: string;
  text: string;
  /** What the model is made to write; empty: what it writes by itself. */
  target: string;
  /** Beams: what the search is made to begin with. */
  prefix: string;
  /** Glass: the token that is followed, s3 or t5. */
  word: string;
  /** Glass: the sub-layer that is unfolded, by its dotted name. */
  open: string;
  /** Glass: heads that are shown there, 0-2-5; empty: the first. */
  heads: string;
  /** Glass: the key that is looked at; -1: the one that gets most. */
  key: number;
  /** Glass: the number that is explained, name@1,2,3. */
  why: string;
  /** Glass: how many target tokens are written; -1: all. */
  step: number;
  /** Beams: the hypothesis that is looked at; -1: none. */
  node: number;
  /** Beams: as a table. */
  table: boolean;
  /** Translate: words are coloured by their probability. */
  scores: boolean;
}

export const FIRST: View = {
  room: "translate",
  model: "",
  text: "The animal didn't cross the street because it was too tired.",
  target: "",
  prefix: "",
  beam: 1,
  length_penalty: 1,
  sample: false,
  temperature: 1,
  top_k: 0,
  top_p: 1,
  seed: 1,
  word: "",
  open: "",
  heads: "",
  key: -1,
  why: "",
  step: -1,
  node: -1,
  table: false,
  scores: false,
};

const BOUNDS: Partial<Record<keyof View, [number, number]>> = {
  beam: [1, 16],
  length_penalty: [0, 10],
  temperature: [0.05, 5],
  top_k: [0, 1000],
  top_p: [0.01, 1],
  seed: [0, 2 ** 31 - 1],
  step: [-1, 1e6],
  key: [-1, 1e6],
  node: [-1, 1e6],
};
const WHOLE = new Set<keyof View>(["beam", "top_k", "seed", "step", "key", "node"]);

/** The view that an address asks for. What it does not say, or says wrongly, is as at first. */
export function fromAddress(query: string): View {
  const given = new URLSearchParams(query);
  const view: Record<string, unknown> = { ...FIRST };
  for (const name of Object.keys(FIRST) as (keyof View)[]) {
    const text = given.get(name);
    if (text === null) continue;
    const first = FIRST[name];
    if (typeof first === "boolean") view[name] = text === "1";
    else if (typeof first === "string") view[name] = text;
    else {
      const [least, most] = BOUNDS[name] ?? [-Infinity, Infinity];
      const number = Number(text);
      if (text.trim() === "" || !Number.isFinite(number)) continue;
      const inside = Math.min(Math.max(number, least), most);
      view[name] = WHOLE.has(name) ? Math.round(inside) : inside;
    }
  }
  if (!ROOMS.includes(view.room as Room)) view.room = FIRST.room;
  return view as unknown as View;
}

/** The address of a view: only what is not as at first. */
export function toAddress(view: View): string {
  const said = new URLSearchParams();
  for (const name of Object.keys(FIRST) as (keyof View)[]) {
    const value = view[name];
    if (value === FIRST[name]) continue;
    said.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  const query = said.toString();
  return query ? `?${query}` : "";
}

const here = () => (typeof location === "undefined" ? "" : location.search);

export const view = $state<View>(fromAddress(here()));

/** Change what is on screen. A step that one wants to go back over is pushed, small ones replace. */
export function go(change: Partial<View>, how: "push" | "replace" = "push"): void {
  Object.assign(view, change);
  const address = `${location.pathname}${toAddress(view)}`;
  if (address === `${location.pathname}${here()}`) return;
  if (how === "push") history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** Another sentence: what was looked at in the last one is gone. */
export const LOOKING = { word: "", why: "", step: -1, key: -1, node: -1, target: "", prefix: "" } satisfies Partial<View>;

export const searchOf = (from: View): Search => ({
  beam: from.beam,
  length_penalty: from.length_penalty,
  sample: from.sample,
  temperature: from.temperature,
  top_k: from.top_k,
  top_p: from.top_p,
  seed: from.seed,
});

/** A token's name in the address, and back. */
export function tokenAt(name: string): { side: "source" | "target"; at: number } | null {
  const found = /^([st])(\d+)$/.exec(name);
  return found && { side: found[1] === "s" ? "source" : "target", at: Number(found[2]) };
}

if (typeof window !== "undefined")
  window.addEventListener("popstate", () => Object.assign(view, fromAddress(here())));
