/**
 * The translation of the sentence on screen: the model's own, and what the reader made of it. It outlives the room, so
 * that coming back shows what was there.
 */

import * as api from "../../shared/api";
import { session } from "../../app/session.svelte";
import { effective, grows } from "../../shared/search";

export interface Answer {
  model: string;
  source: string;
  search: api.Search;
  translation: api.Translation;
}

type Wanted = Omit<Answer, "translation">;

const sameText = (one: Wanted, other: Wanted) => one.model === other.model && one.source === other.source;
const sameSearch = (one: Wanted, other: Wanted) => JSON.stringify(one.search) === JSON.stringify(other.search);

/** Milliseconds that an option must rest: a slider passes many values. */
const REST = 150;

export class Translating {
  own = $state.raw<Answer | null>(null);
  /** The answer to the same text with other options, before this one. */
  before = $state.raw<Answer | null>(null);
  /** What the reader made the model write instead. */
  chosen = $state.raw<Answer | null>(null);
  /** As much as has come of the answer that is on its way. */
  growing = $state<string | null>(null);
  busy = $state(false);
  problem = $state("");
  private model = "";
  private asked = "";
  private askedChoice = "";
  private rest: ReturnType<typeof setTimeout> | undefined;
  private leave = new AbortController();
  private leaveChoice = new AbortController();
  private cuts = new Map<string, Promise<string[] | undefined>>();

  /** Have the translation of a text, unless it is there or on its way. */
  look(model: string, text: string, search: api.Search, target: string): void {
    this.only(model);
    const wanted = { model, source: text.trim(), search: effective(search) };
    this.lookOwn(wanted);
    void this.lookChosen(wanted, target.trim());
  }

  /** What another model wrote is not shown under this one's name. */
  only(model: string): void {
    if (this.model === model) return;
    this.model = model;
    this.own = this.before = this.chosen = this.growing = null;
    this.problem = this.asked = this.askedChoice = "";
    this.leave.abort();
    this.leaveChoice.abort();
    clearTimeout(this.rest);
  }

  /** Ask once more for the same. */
  again(model: string, text: string, search: api.Search, target: string): void {
    this.asked = this.askedChoice = "";
    this.look(model, text, search, target);
  }

  /**
   * The tokens of an answer as its text is cut when it is read again, which is what positions count. A sample may have
   * been drawn in smaller ones.
   */
  async cut(answer: Answer): Promise<string[]> {
    const { model, source, translation } = answer;
    const key = JSON.stringify([model, source, translation.text]);
    if (!this.cuts.has(key)) {
      this.cuts.clear();
      const scored = asking(() => api.score(model, source, translation.text));
      this.cuts.set(key, scored.then(({ found }) => found?.tokens));
    }
    const found = await this.cuts.get(key);
    if (!found) this.cuts.delete(key);
    return found ?? translation.tokens ?? [];
  }

  private lookOwn(wanted: Wanted): void {
    const key = JSON.stringify(wanted);
    if (key === this.asked) return;
    this.asked = key;
    this.leave.abort();
    clearTimeout(this.rest);
    this.problem = "";
    this.busy = wanted.source !== "";
    if (!this.busy) this.own = this.before = this.growing = null;
    else if (this.own && sameText(this.own, wanted)) this.rest = setTimeout(() => this.ask(wanted), REST);
    else void this.ask(wanted);
  }

  private async ask(wanted: Wanted): Promise<void> {
    this.leave = new AbortController();
    const { signal } = this.leave;
    const { model, source, search } = wanted;
    let grown = "";
    const told = (more: string) => {
      if (!signal.aborted) this.growing = grown += more;
    };
    const { found, problem } = await asking(() =>
      grows(search)
        ? api.stream(model, source, search, "", told, signal)
        : api.translate(model, source, search, "", signal),
    );
    if (signal.aborted) return;
    this.busy = false;
    this.problem = problem;
    if (found) {
      const last = this.own && sameText(this.own, wanted) ? this.own : null;
      if (!last || !sameSearch(last, wanted)) this.before = last;
      this.own = { ...wanted, translation: found };
      this.growing = null;
    } else if (problem) this.own = this.before = this.growing = null;
    else this.asked = ""; // the server is away: what is there stays, and is asked for again
  }

  private async lookChosen(wanted: Wanted, target: string): Promise<void> {
    const { model, source, search } = wanted;
    const key = target && source ? JSON.stringify([model, source, target]) : "";
    if (key === this.askedChoice) return;
    this.askedChoice = key;
    this.leaveChoice.abort();
    this.leaveChoice = new AbortController();
    const { signal } = this.leaveChoice;
    if (this.own) this.problem = ""; // it was of the last choice
    if (!key) {
      this.chosen = null;
      return;
    }
    const { found, problem } = await asking(() => api.score(model, source, target, signal));
    if (signal.aborted) return;
    if (found) {
      const { tokens, log_probs, log_prob } = found;
      const score = log_prob / log_probs.length ** search.length_penalty;
      this.chosen = { ...wanted, translation: { text: target, tokens, log_probs, score } };
    } else {
      this.chosen = null;
      this.problem ||= problem;
      if (!problem) this.askedChoice = "";
    }
  }
}

/** Ask the server: what it says, or its problem in words; neither where it is away or nobody waits any longer. */
export async function asking<T>(work: () => Promise<T>): Promise<{ found?: T; problem: string }> {
  let problem = "";
  const found = await session.reach(async () => {
    try {
      return await work();
    } catch (error) {
      if (error instanceof api.Problem && !error.gone) {
        problem = error.message;
        return undefined;
      }
      // So browsers name a connection that breaks off while an answer comes.
      throw error instanceof TypeError ? new api.Problem(0, "The server broke off.") : error;
    }
  });
  return { found, problem };
}

export const translating = new Translating();
