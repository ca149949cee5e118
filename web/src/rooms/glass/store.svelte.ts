/** What the glass shows: which word is followed, where its heads look, and how far the model has come. */

import { nodeFrom, nodeName, sideOf, type Node } from "../../trace/lineage";
import { word } from "../../shared/numbers";
import { session } from "../../app/session.svelte";
import { row, type Side, type Tensor, type Trace } from "../../trace/trace";
import { go, tokenAt, view } from "../../app/view.svelte";

export interface Token {
  side: Side;
  at: number;
}

export type Which = "self" | "cross";

/** An attention of the model: encoder.layers.0.self_attention. */
export interface Attention {
  path: string;
  stack: "encoder" | "decoder";
  layer: number;
  which: Which;
  queries: Side;
  keys: Side;
}

/** Above so many tokens, pictures come layer by layer as they are scrolled to. */
export const MANY = 128;

const NAME = /^(encoder|decoder)\.layers\.(\d+)\.(self|cross)_attention$/;

export function attentionFrom(path: string): Attention | null {
  const found = NAME.exec(path);
  if (!found) return null;
  const stack = found[1] as "encoder" | "decoder";
  const which = found[3] as Which;
  const queries: Side = stack === "encoder" ? "source" : "target";
  return { path, stack, layer: Number(found[2]), which, queries, keys: which === "cross" ? "source" : queries };
}

const known = new WeakMap<Trace, Attention[]>();

/** The attentions of a model, in the order in which it computes them. */
export function attentions(trace: Trace): Attention[] {
  if (!known.has(trace)) {
    const names = trace.about.tensors.map((one) => one.name).filter((name) => name.endsWith("_attention.probabilities"));
    known.set(trace, names.map((name) => attentionFrom(name.slice(0, -".probabilities".length))!));
  }
  return known.get(trace)!;
}

class Glass {
  /** The word under the pointer; the one that was chosen is in the address. */
  hover = $state.raw<Token | null>(null);
  /** Weights of attentions, as far as they have come: a new map each time. */
  pictures = $state.raw<ReadonlyMap<string, Tensor>>(new Map());
  private of: Trace | null = null;

  get chosen(): Token | null {
    const token = tokenAt(view.word);
    return token && token.at < (session.trace?.words(token.side).length ?? 0) ? token : null;
  }

  get active(): Token | null {
    return this.hover ?? this.chosen;
  }

  /** The position that is opened in a stack: the chosen word's, or the last one that is there; -1: none is yet. */
  position(side: Side): number {
    const token = this.chosen;
    if (token?.side === side) return token.at;
    const last = (session.trace?.words(side).length ?? 1) - 1;
    return side === "target" ? Math.min(last, this.written - 1) : last;
  }

  // --- The clock: first the encoder, layer by layer; then a target token in each step.

  get encoderFrames(): number {
    const { trace } = session;
    return trace?.words("source").length ? trace.config.encoder.layers + 1 : 0;
  }

  get frames(): number {
    return this.encoderFrames + (session.trace?.words("target").length ?? 0);
  }

  /** Where the clock stands; at its end where nothing else is said. */
  get frame(): number {
    return view.step < 0 ? this.frames : Math.min(view.step, this.frames);
  }

  /** Layers of the encoder that are done; -1: not even the embedding. */
  get encoded(): number {
    return Math.min(this.frame, this.encoderFrames) - 1;
  }

  /** Target tokens that are read. */
  get written(): number {
    return Math.max(this.frame - this.encoderFrames, 0);
  }

  get finished(): boolean {
    return this.frame >= this.frames;
  }

  /** Words of a side that are read: of the source all at once. */
  read(side: Side): number {
    return side === "target" ? this.written : this.encoded < 0 ? 0 : (session.trace?.words(side).length ?? 0);
  }

  /** Whether nothing is computed yet in a part of a stack: 0 is its embedding, then come its layers; with the last, the top. */
  ahead(stack: string, layer: number): boolean {
    return stack === "encoder" ? this.encoded < layer : this.written === 0;
  }

  /** Why what is opened in a part of a stack cannot be shown at this step, and the step from which it can. */
  waits(stack: string, layer: number): { says: string; until: number } | null {
    const at = this.position(sideOf(stack));
    if (this.ahead(stack, layer)) {
      const until = stack === "encoder" ? layer + 1 : this.encoderFrames + Math.max(at, 0) + 1;
      return { says: "Nothing is computed here yet at this step.", until };
    }
    if (stack === "encoder" || at < this.written) return null;
    const token = word(session.trace?.words("target")[at] ?? "");
    return { says: `“${token}” is not read yet at this step: nothing is computed for it here.`, until: this.encoderFrames + at + 1 };
  }

  /** The clock is set; at its end the address says nothing of it. */
  set(frame: number): void {
    go({ step: frame >= this.frames ? -1 : Math.max(frame, 0) }, "replace");
  }

  // --- Heads

  heads(count: number): number[] {
    const chosen = view.heads.split("-").filter((text) => /^\d+$/.test(text)).map(Number).filter((head) => head < count);
    return chosen.length ? [...new Set(chosen)] : [0];
  }

  /** Get the weights of attentions, those that are not there yet. */
  async fetch(trace: Trace, paths: string[]): Promise<void> {
    if (this.of !== trace) {
      this.of = trace;
      this.pictures = new Map();
    }
    const names = paths.map((path) => `${path}.probabilities`).filter((name) => !this.pictures.has(name));
    if (!names.length) return;
    const found = await session.reach(() => trace.tensors(names, "f16"));
    if (!found || this.of !== trace) return;
    this.pictures = new Map([...this.pictures, ...found.map((one) => [one.name, one] as const)]);
  }

  /** Of the sentence on screen: those of the one before have other words. */
  weights(path: string): Tensor | undefined {
    const found = this.pictures.get(`${path}.probabilities`); // first: whoever asks is told when there are others
    return session.trace === this.of ? found : undefined;
  }

  /**
   * How much of the active word's attention each word of a side has. In the attention that is open, by its chosen heads;
   * else the mean over all layers and heads that look at this side.
   */
  shades(trace: Trace, side: Side): Float32Array {
    const shades = new Float32Array(trace.words(side).length);
    const token = this.active;
    if (!token || token.at >= this.read(token.side)) return shades;
    const opened = attentionFrom(view.open);
    const able = attentions(trace).filter((one) => one.queries === token.side && one.keys === side);
    const from = opened && opened.queries === token.side && opened.keys === side ? [opened] : able;
    let count = 0;
    for (const { path } of from) {
      const weights = this.weights(path);
      if (!weights) continue;
      const heads = from.length === 1 && opened?.path === path ? this.heads(weights.shape[0]) : [...Array(weights.shape[0]).keys()];
      for (const head of heads) {
        row(weights, head, token.at).forEach((weight, i) => (shades[i] += weight));
        count++;
      }
    }
    return count ? shades.map((weight) => weight / count) : shades;
  }
}

export const glass = new Glass();

/** The number that is explained. */
export const explained = (): Node | null => nodeFrom(view.why);

export const explain = (node: Node) => go({ why: nodeName(node) });

const named = (token: Token) => `${token.side[0]}${token.at}`;

/** A word is chosen; once more, and it is let go. */
export const follow = (token: Token) => go({ word: view.word === named(token) ? "" : named(token), key: -1 });

export const letGo = () => go({ word: "", key: -1 });
