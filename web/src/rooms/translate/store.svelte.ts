/** The translation of the text: the model's own, and the reader's choice. */

import { useApp, type AppContext } from "../../app/context.svelte";
import { effective, streams } from "../../app/search";
import type { Search, Translation } from "../../shared/api";
import { Latest } from "../../shared/request.svelte";

export interface Answer {
  model: string;
  source: string;
  search: Search;
  translation: Translation;
}

type Request = Omit<Answer, "translation">;

const sameText = (one: Request, other: Request) => one.model === other.model && one.source === other.source;
const sameSearch = (one: Request, other: Request) => JSON.stringify(one.search) === JSON.stringify(other.search);

/** Milliseconds without a change before a request: a slider passes many values. */
const REST = 150;

export class TranslateStore {
  /** The answer to the same text with other options, before this one. */
  before = $state.raw<Answer | null>(null);
  /** The part of the next answer that has arrived. */
  partial = $state<string | null>(null);
  private answer: Latest<Answer>;
  private choice: Latest<Answer>;
  private model = "";
  private tokens = new Map<string, Promise<string[]>>();

  constructor(private app: AppContext) {
    const refused = () => {
      this.before = this.partial = null;
      return false;
    };
    this.answer = new Latest<Answer>(app.connection, refused);
    this.choice = new Latest<Answer>(app.connection);
  }

  /** The model's own translation. */
  get own(): Answer | null {
    return this.answer.value;
  }

  /** The target that the reader chose, scored by the model. */
  get chosen(): Answer | null {
    return this.choice.value;
  }

  get busy(): boolean {
    return this.answer.waiting;
  }

  get problem(): string {
    return this.answer.problem || this.choice.problem;
  }

  /** Request the translation of a text and the score of a target. */
  look(model: string, text: string, search: Search, target: string): void {
    if (model !== this.model) this.clear(); // an answer never appears under the name of another model
    this.model = model;
    const request = { model, source: text.trim(), search: effective(search) };
    this.translate(request);
    this.score(request, target.trim());
  }

  /** Request the same once more. */
  repeat(model: string, text: string, search: Search, target: string): void {
    this.answer.cancel();
    this.choice.cancel();
    this.look(model, text, search, target);
  }

  /**
   * The tokens that positions of alternatives count: those of the text when the model reads it. A sample may consist of
   * others.
   */
  async readTokens({ model, source, translation }: Answer): Promise<string[]> {
    const key = JSON.stringify([model, source, translation.text]);
    let found = this.tokens.get(key);
    if (!found) {
      found = this.app.api.score(model, source, translation.text).then(({ tokens }) => tokens);
      this.tokens.clear();
      this.tokens.set(key, found);
      found.catch(() => this.tokens.delete(key));
    }
    return found;
  }

  private clear(): void {
    this.answer.clear();
    this.choice.clear();
    this.before = this.partial = null;
  }

  private translate(request: Request): void {
    const { model, source, search } = request;
    if (!source) {
      this.answer.clear();
      this.before = this.partial = null;
      return;
    }
    const last = this.own && sameText(this.own, request) ? this.own : null;
    const work = async (signal: AbortSignal): Promise<Answer> => {
      let text = "";
      const report = (piece: string) => {
        if (!signal.aborted) this.partial = text += piece;
      };
      const { api } = this.app;
      const translation = await (streams(search)
        ? api.stream(model, source, search, report, signal)
        : api.translate(model, source, search, signal));
      if (!signal.aborted) {
        if (!last || !sameSearch(last, request)) this.before = last;
        this.partial = null;
      }
      return { ...request, translation };
    };
    void this.answer.ask([JSON.stringify(request)], work, last ? REST : 0);
  }

  private score(request: Request, target: string): void {
    const { model, source, search } = request;
    if (!target || !source) {
      this.choice.clear();
      return;
    }
    const work = async (signal: AbortSignal): Promise<Answer> => {
      const { tokens, log_probs, log_prob } = await this.app.api.score(model, source, target, signal);
      const score = log_prob / log_probs.length ** search.length_penalty;
      return { ...request, translation: { text: target, tokens, log_probs, score } };
    };
    void this.choice.ask([model, source, target, search.length_penalty], work);
  }
}

export const useTranslate = () => useApp().use(TranslateStore);
