/** The options of a search, as far as they matter, and in words. */

import type { Search } from "../shared/api";
import { counted } from "../shared/numbers";
import { FIRST, searchOf } from "./view.svelte";

/** What has no effect is as at first, so that two searches that do the same are equal. */
export function effective(search: Search): Search {
  const { beams, length_penalty, ...drawing } = search;
  const usual = searchOf(FIRST);
  if (search.sample) return { ...usual, ...drawing };
  return { ...usual, beams, length_penalty: beams > 1 ? length_penalty : usual.length_penalty };
}

/** Several beams change their mind; one never does, nor does a sample, so that these can be told as they grow. */
export const streams = (search: Search) => search.sample || search.beams === 1;

/** What comes after “with”. */
export function described(search: Search): string {
  const usual = searchOf(FIRST);
  if (!search.sample) {
    const penalty = search.length_penalty === usual.length_penalty ? "" : `, length penalty ${search.length_penalty}`;
    return counted(search.beams, "beam") + penalty;
  }
  const said = [`seed ${search.seed}`];
  if (search.temperature !== usual.temperature) said.push(`temperature ${search.temperature}`);
  if (search.top_k !== usual.top_k) said.push(`top-k ${search.top_k}`);
  if (search.top_p !== usual.top_p) said.push(`top-p ${search.top_p}`);
  return `a sample, ${said.join(", ")}`;
}
