/** The server: whether it is there, its models, and the trace of the sentence on screen. */

import * as api from "../shared/api";
import storedAt from "../trace/stored.bin?url";
import { stored, Trace } from "../trace/trace";
import { effective } from "../shared/search";
import { searchOf, view } from "./view.svelte";

/** Milliseconds without an answer, after which the stored trace is shown. */
const SOON = 300;

class Session {
  models = $state.raw<api.Model[]>([]);
  /** Whether the last request reached the server. */
  there = $state(true);
  /** What is wrong with the sentence on screen, in words. */
  problem = $state("");
  trace = $state.raw<Trace | null>(null);
  /** Whether another trace is on its way. */
  waiting = $state(false);
  /** Whether the trace on screen is the one that came with the page, of another sentence. */
  isStored = $state(false);
  private begun = false;
  private asked = "";
  private renewed: Trace | null = null;
  private leave: AbortController | null = null;

  get model(): api.Model | undefined {
    return this.models.find((one) => one.name === view.model) ?? this.models[0];
  }

  /** Whether what is written on screen was given to the model: by the reader, or as it was written part by part. */
  get given(): boolean {
    return view.target !== "" || (this.trace?.about.parts ?? 1) > 1;
  }

  async start(): Promise<void> {
    await this.reach(async () => (this.models = await api.models()));
  }

  /** Do something with the server; notice when it is gone, and when it is back. */
  async reach<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      const found = await work();
      this.there = true;
      return found;
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        if (error instanceof DOMException && error.name === "AbortError") return undefined;
        throw error;
      }
      if (error.gone) this.lost();
      else if (error.status === 404 && this.trace && this.trace !== this.renewed) this.renew();
      else this.problem = error.message;
      return undefined;
    }
  }

  /** Look into the model with the sentence of the view, unless that is done. */
  async look(): Promise<void> {
    const model = this.model;
    const text = view.text.trim().replace(/\s*\n\s*/g, " "); // lines are read as one
    if (!this.begun) this.showStored();
    this.begun = true;
    if (!model) return;
    const target = view.target || null;
    const search = effective(searchOf(view));
    const asked = JSON.stringify([model.name, text, target ?? search]);
    if (asked === this.asked) return;
    this.leave?.abort();
    this.leave = new AbortController();
    const { signal } = this.leave;
    this.asked = asked;
    this.problem = "";
    if (!text) {
      this.show(null);
      this.waiting = false;
      return;
    }
    this.waiting = true;
    const about = await this.reach(async () => {
      const drawn = target === null && search.sample && model.architecture === "encoder-decoder";
      // A trace searches; what was drawn is drawn again, as Translate does it, and then looked into.
      const said = drawn ? (await api.stream(model.name, text, search, "", () => {}, signal)).text : target;
      return api.trace(model.name, text, said, search, signal);
    });
    if (signal.aborted) return;
    this.waiting = false;
    if (about) this.show(new Trace(about, api.carrier(about)));
    else {
      this.asked = "";
      if (this.problem) this.show(null);
    }
  }

  private show(trace: Trace | null): void {
    this.isStored = false;
    this.trace = trace;
  }

  /** Never an empty scene: until there is something else, a real trace that came with the page. */
  private async showStored(): Promise<void> {
    await new Promise((done) => setTimeout(done, SOON));
    if (this.trace || this.problem) return;
    const answer = await fetch(storedAt).catch(() => null);
    if (!answer?.ok) return;
    const trace = stored(await answer.arrayBuffer());
    if (this.trace || this.problem || !view.text.trim()) return;
    this.isStored = true;
    this.trace = trace;
  }

  /** A server that was started anew, or had many visitors, has forgotten the trace: it is asked for once more. */
  private renew(): void {
    this.renewed = this.trace;
    this.asked = "";
    this.look();
  }

  private lost(): void {
    if (!this.there) return;
    this.there = false;
    const again = async () => {
      try {
        await api.ready();
        this.models = await api.models();
        this.there = true;
        this.asked = "";
      } catch {
        setTimeout(again, 1000);
      }
    };
    setTimeout(again, 500);
  }
}

export const session = new Session();
