/** The trace in the glass, the word under the pointer, the pictures of the heads, and the clock. */

import { useApp, type AppContext } from "../../app/context.svelte";
import { effective } from "../../app/search";
import { searchOf } from "../../app/view.svelte";
import type { Translation, WhatIf } from "../../shared/api";
import { taskOf } from "../../shared/models";
import { word } from "../../shared/numbers";
import { Latest, Problem, Unreachable } from "../../shared/request.svelte";
import { attentionAt, attentions } from "../../trace/attention";
import { serverCarrier, storedTrace } from "../../trace/carriers";
import { nodeFrom, nodeName, type Node } from "../../trace/lineage";
import storedAt from "../../trace/stored.bin?url";
import { row, Trace, type Side, type Stack, type Tensor } from "../../trace/trace";
import { cellsOf, changesOf, whatIf } from "./changes";
import { tokenAt } from "./view";

/** A trace, and for a changed model that of the unchanged one. */
interface Looked {
  trace: Trace;
  before: Trace | null;
  /** The translation that they read. */
  translation: string | null;
}

export interface Token {
  side: Side;
  at: number;
}

/** Above this number of tokens, the pictures of a layer are loaded when it scrolls into view. */
export const MANY = 128;

/** Milliseconds without an answer before the stored trace is shown. */
const SOON = 300;

/** Milliseconds before a trace that the service no longer has is traced again. */
const RENEWAL = 10_000;

export class GlassStore {
  /** The word under the pointer; the selected one is in the address. */
  hover = $state.raw<Token | null>(null);
  private live: Latest<Looked>;
  /** The last trace of the unchanged model, and the request for it. */
  private unchanged: { key: string; trace: Trace; target: string | null } | null = null;
  /** The changed model's own translation. */
  private own: Latest<Translation>;
  private placeholder = $state.raw<Trace | null>(null);
  /** Attention weights of a trace that have arrived: a new map each time. */
  private pictures = $state.raw<{ of: Trace | null; weights: ReadonlyMap<string, Tensor> }>({ of: null, weights: new Map() });
  private started = false;
  private renewed: Trace | null = null;
  private renewedAt = -Infinity;

  constructor(private app: AppContext) {
    this.live = new Latest<Looked>(app.connection, () => {
      this.placeholder = null;
      return false;
    });
    this.own = new Latest<Translation>(app.connection);
  }

  get trace(): Trace | null {
    return this.app.trace ?? this.live.value?.trace ?? this.placeholder;
  }

  /** Of a changed model: the trace of the unchanged model on the same tokens. */
  get before(): Trace | null {
    return this.live.value?.before ?? null;
  }

  /** The translation that is traced. */
  get translation(): string {
    return this.live.value?.translation ?? "";
  }

  /** The trace of the unchanged model, if it reads the same tokens. */
  get base(): Trace | null {
    return this.before ?? this.trace;
  }

  // --- Changes to the model

  /** Items of changed parts and heads. */
  changes = $derived.by(() => changesOf(this.app.view.changes));
  /** Items of cells that are set. */
  cells = $derived.by(() => cellsOf(this.app.view.cells));

  /** Whether the trace is that of a changed model. */
  get isChanged(): boolean {
    return !!this.trace?.manifest.what_if;
  }

  /** Whether the reader can change the model: there is a service. */
  get canChange(): boolean {
    return !this.app.trace;
  }

  /** The changed model's own translation, and why there is none. */
  get ownTranslation(): { value: Translation | null; problem: string; waiting: boolean } {
    return this.own;
  }

  change(changes: string[], cells = this.cells): void {
    this.app.go({ changes: changes.join(","), cells: cells.join(",") });
  }

  /** Switch a part off, or on again. */
  toggle(item: string): void {
    const { changes } = this;
    this.change(changes.includes(item) ? changes.filter((one) => one !== item) : [...changes, item]);
  }

  /** Whether the trace is the one stored with the page, until the model answers. */
  get isStored(): boolean {
    return this.trace !== null && this.trace === this.placeholder;
  }

  get waiting(): boolean {
    return this.live.waiting;
  }

  get problem(): string {
    return this.live.problem;
  }

  /** Whether the target was given to the model: by the reader, or as the translations of several parts. */
  get given(): boolean {
    return this.app.view.target !== "" || (this.trace?.manifest.parts ?? 1) > 1;
  }

  /** Trace the model with the text of the view. */
  look(): void {
    const { view, model, api, connection } = this.app;
    const text = view.text.trim().replace(/\s*\n\s*/g, " "); // a trace has one line
    if (!this.started) void this.showStored();
    this.started = true;
    if (!text) {
      this.placeholder = null;
      this.own.clear();
      return this.live.clear();
    }
    if (!model) return;
    const { name } = model;
    const target = view.target || null;
    const search = effective(searchOf(view));
    const sampled = target === null && search.sample && taskOf(model) === "translate";
    const plain = JSON.stringify([name, text, target ?? search]);
    const what_if = whatIf(this.changes, this.cells);
    const traced = async (given: string | null, signal: AbortSignal, changed: WhatIf | null = null) => {
      const answer = await api.trace(name, text, given, search, signal, changed);
      return { trace: new Trace(answer, serverCarrier(connection, answer)), target: answer.target };
    };
    void this.live.ask([plain, JSON.stringify(what_if)], async (signal) => {
      if (this.unchanged?.key !== plain) {
        // The service traces a search, not a sample. So the sample is drawn first, as Translate does it.
        const drawn = sampled ? (await api.stream(name, text, search, () => {}, signal)).text : target;
        this.unchanged = { key: plain, ...(await traced(drawn, signal)) };
      }
      const { trace, target: translation } = this.unchanged;
      if (!what_if) return { trace, before: null, translation };
      // The changed model reads the same tokens, so that every number has one to compare with.
      const given = taskOf(model) === "translate" ? translation : null;
      const changed = await traced(given, signal, what_if);
      const equal = (other: Trace) => JSON.stringify(changed.trace.manifest.ids) === JSON.stringify(other.manifest.ids);
      const before = equal(trace) || given === null ? trace : (await traced(given, signal)).trace;
      return { trace: changed.trace, before: equal(before) ? before : null, translation };
    });
    if (!what_if || taskOf(model) !== "translate") return this.own.clear();
    void this.own.ask([plain, JSON.stringify(what_if)], (signal) => api.translate(name, text, search, signal, what_if));
  }

  /** A request for numbers of the trace. If the service no longer has the trace, it is traced once more. */
  numbers<T>(): Latest<T> {
    return new Latest<T>(this.app.connection, (problem) => this.renew(problem));
  }

  private renew({ status }: Problem): boolean {
    const trace = this.live.value?.trace;
    if (status !== 404 || !trace) return false;
    if (trace === this.renewed) return true; // it is being traced
    if (performance.now() - this.renewedAt < RENEWAL) return false;
    this.renewed = trace;
    this.renewedAt = performance.now();
    this.unchanged = null;
    this.live.cancel();
    this.look();
    return true;
  }

  /** Until the model answers, show a real trace that is stored with the page. */
  private async showStored(): Promise<void> {
    await new Promise((done) => setTimeout(done, SOON));
    const empty = () => !this.trace && !this.problem && this.app.view.text.trim() !== "";
    if (!empty()) return;
    const { connection } = this.app;
    const bytes = await connection.read(connection.send(storedAt), (answer) => answer.arrayBuffer()).catch(() => null);
    if (bytes && empty()) this.placeholder = storedTrace(bytes);
  }

  // --- Words

  get selected(): Token | null {
    const token = tokenAt(this.app.view.word);
    return token && token.at < (this.trace?.words(token.side).length ?? 0) ? token : null;
  }

  get active(): Token | null {
    return this.hover ?? this.selected;
  }

  /** Select a word, or end its selection. */
  select(token: Token): void {
    const name = `${token.side[0]}${token.at}`;
    this.app.go({ word: this.app.view.word === name ? "" : name, key: -1 });
  }

  deselect(): void {
    this.app.go({ word: "", key: -1 });
  }

  /** The position that opened boxes show: the selected word, or the last one that is read; -1: none yet. */
  position(side: Side): number {
    const token = this.selected;
    if (token?.side === side) return token.at;
    const last = (this.trace?.words(side).length ?? 1) - 1;
    return side === "target" ? Math.min(last, this.written - 1) : last;
  }

  // --- The explained number

  get explained(): Node | null {
    return nodeFrom(this.app.view.why);
  }

  explain(node: Node): void {
    this.app.go({ why: nodeName(node) });
  }

  // --- The clock: first the stack that reads all tokens together, layer by layer; then a target token in each step

  /** The stack that reads all tokens together. */
  get encoder(): Stack | undefined {
    return this.trace?.stacks.find((stack) => !stack.causal);
  }

  get encoderFrames(): number {
    return this.encoder ? this.encoder.layers + 1 : 0;
  }

  get frames(): number {
    return this.encoderFrames + (this.trace?.words("target").length ?? 0);
  }

  get frame(): number {
    const { step } = this.app.view;
    return step < 0 ? this.frames : Math.min(step, this.frames);
  }

  /** Encoder layers that are computed; -1: not even the embedding. */
  get encoded(): number {
    return Math.min(this.frame, this.encoderFrames) - 1;
  }

  /** Target tokens that the decoder has read. */
  get written(): number {
    return Math.max(this.frame - this.encoderFrames, 0);
  }

  get finished(): boolean {
    return this.frame >= this.frames;
  }

  /** Words of a side that are read: those of the source all together. */
  read(side: Side): number {
    return side === "target" ? this.written : this.encoded < 0 ? 0 : (this.trace?.words(side).length ?? 0);
  }

  /** Whether a part of a stack is not computed yet. Part 0 is the embedding; the last layer includes the top. */
  pending({ causal }: Stack, layer: number): boolean {
    return causal ? this.written === 0 : this.encoded < layer;
  }

  /** Why a part of a stack is empty at this step, and the first step that fills it. */
  reasonEmpty(stack: Stack, layer: number): { reason: string; until: number } | null {
    const at = this.position(stack.side);
    if (this.pending(stack, layer)) {
      const until = stack.causal ? this.encoderFrames + Math.max(at, 0) + 1 : layer + 1;
      return { reason: "Not computed yet at this step.", until };
    }
    if (!stack.causal || at < this.written) return null;
    const token = word(this.trace?.words(stack.side)[at] ?? "");
    return { reason: `“${token}” is not read yet at this step.`, until: this.encoderFrames + at + 1 };
  }

  /** Move the clock. Its end is not part of the address. */
  moveTo(frame: number): void {
    this.app.go({ step: frame >= this.frames ? -1 : Math.max(frame, 0) }, "replace");
  }

  // --- Heads

  heads(count: number): number[] {
    const parts = this.app.view.heads.split("-").filter((text) => /^\d+$/.test(text));
    const chosen = parts.map(Number).filter((head) => head < count);
    return chosen.length ? [...new Set(chosen)] : [0];
  }

  /** Load the weights of attentions. */
  async load(trace: Trace, paths: string[]): Promise<void> {
    if (this.pictures.of !== trace) this.pictures = { of: trace, weights: new Map() };
    const names = paths.map((path) => `${path}.probabilities`).filter((name) => !this.pictures.weights.has(name));
    if (!names.length) return;
    try {
      const found = await trace.tensors(names, "f16");
      if (this.pictures.of !== trace) return;
      const weights = new Map([...this.pictures.weights, ...found.map((one) => [one.name, one] as const)]);
      this.pictures = { of: trace, weights };
    } catch (error) {
      if (error instanceof Unreachable) this.app.connection.whenBack(() => void this.load(trace, paths));
      else if (!(error instanceof Problem)) throw error;
      else this.renew(error);
    }
  }

  weights(path: string): Tensor | undefined {
    const { of, weights } = this.pictures;
    return of === this.trace ? weights.get(`${path}.probabilities`) : undefined;
  }

  /**
   * The share of the active word's attention that each word of a side gets: in the open attention by its chosen heads,
   * otherwise the mean over all layers and heads that look at this side.
   */
  shades(trace: Trace, side: Side): Float32Array {
    const shades = new Float32Array(trace.words(side).length);
    const token = this.active;
    if (!token || token.at >= this.read(token.side)) return shades;
    const looks = (one: { queries: Side; keys: Side }) => one.queries === token.side && one.keys === side;
    const open = attentionAt(trace, this.app.view.open);
    const single = open && looks(open) ? open : null;
    let count = 0;
    for (const { path } of single ? [single] : attentions(trace).filter(looks)) {
      const weights = this.weights(path);
      if (!weights) continue;
      const heads = single ? this.heads(weights.shape[0]) : [...Array(weights.shape[0]).keys()];
      for (const head of heads) {
        row(weights, head, token.at).forEach((weight, i) => (shades[i] += weight));
        count++;
      }
    }
    return count ? shades.map((weight) => weight / count) : shades;
  }
}

export const useGlass = () => useApp().use(GlassStore);
