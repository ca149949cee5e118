/** Options of a search: their effect and their description. */

import type { Search } from "../shared/api";
import { counted } from "../shared/numbers";
import { FIRST, searchOf } from "./view.svelte";

/** The search without options that have no effect, so that equivalent searches are equal. */
export function effective(search: Search): Search {
  const { beams, length_penalty, ...drawing } = search;
  const usual = searchOf(FIRST);
  if (search.sample) return { ...usual, ...drawing };
  return { ...usual, beams, length_penalty: beams > 1 ? length_penalty : usual.length_penalty };
}

/** Whether an answer can be streamed. Beam search revises earlier words; greedy search and sampling do not. */
export const streams = (search: Search) => search.sample || search.beams === 1;

/** The options in words, after “with”. */
export function described(search: Search): string {
  const usual = searchOf(FIRST);
  if (!search.sample) {
    const penalty = search.length_penalty === usual.length_penalty ? "" : `, length penalty ${search.length_penalty}`;
    return counted(search.beams, "beam") + penalty;
  }
  const parts = [`seed ${search.seed}`];
  if (search.temperature !== usual.temperature) parts.push(`temperature ${search.temperature}`);
  if (search.top_k !== usual.top_k) parts.push(`top-k ${search.top_k}`);
  if (search.top_p !== usual.top_p) parts.push(`top-p ${search.top_p}`);
  return `sampling, ${parts.join(", ")}`;
}
