/** The search on screen, and the same one left alone where a beginning is forced. */

import * as api from "../../shared/api";
import { session } from "../../app/session.svelte";
import { grow, type Tree } from "./tree";

export interface Wish {
  model: string;
  text: string;
  beam: number;
  length_penalty: number;
  prefix: string;
}

/** A search, with what was asked for: the sliders may be elsewhere already. */
export interface Found extends Wish {
  tree: Tree;
}

/** A slider that is being moved asks once, when it rests. */
const REST = 150;

class Searching {
  found = $state.raw<Found | null>(null);
  /** Without the forced beginning; of a search that was free anyway, itself. */
  free = $state.raw<Found | null>(null);
  problem = $state("");
  waiting = $state(false);
  private asked = "";
  private leave: AbortController | null = null;

  async ask(wish: Wish): Promise<void> {
    const asked = JSON.stringify(wish);
    if (asked === this.asked) return;
    this.leave?.abort();
    const { signal } = (this.leave = new AbortController());
    const first = !this.asked;
    this.asked = asked;
    this.problem = "";
    this.waiting = wish.text !== "";
    if (!this.waiting) {
      this.found = this.free = null;
      return;
    }
    if (!first) await new Promise((rest) => setTimeout(rest, REST));
    if (signal.aborted) return;
    const both = await session.reach(() => this.both(wish, signal));
    if (signal.aborted) return;
    this.waiting = false;
    if (both) [this.found, this.free] = both;
    else {
      this.asked = ""; // it is asked again as soon as anything changes, or the server is back
      if (this.problem) this.found = this.free = null;
    }
  }

  private async both(wish: Wish, signal: AbortSignal): Promise<[Found, Found] | undefined> {
    const alone = { ...wish, prefix: "" };
    try {
      if (!wish.prefix) {
        const found = this.known(wish) ?? (await this.one(wish, signal));
        return [found, found];
      }
      return await Promise.all([this.one(wish, signal), this.known(alone) ?? this.one(alone, signal)]);
    } catch (error) {
      // What is wrong with the sentence is said in this room; that the server is gone, above all rooms.
      if (!(error instanceof api.Problem) || error.gone) throw error;
      this.problem = error.message;
      return undefined;
    }
  }

  private async one(wish: Wish, signal: AbortSignal): Promise<Found> {
    const { model, text, beam, length_penalty, prefix } = wish;
    const { beams } = await api.beams(model, text, beam, length_penalty, prefix, signal);
    return { ...wish, tree: grow(beams, prefix) };
  }

  private known(wish: Wish): Found | null {
    const same = (key: keyof Wish) => this.free?.[key] === wish[key];
    return (Object.keys(wish) as (keyof Wish)[]).every(same) ? this.free : null;
  }
}

export const searching = new Searching();
