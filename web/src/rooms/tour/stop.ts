/** A stop of the tour: the place that it shows in a live room, a prediction, its answer by the model, and a task. */

import type { AppContext } from "../../app/context.svelte";
import type { View } from "../../app/view.svelte";
import type { Task } from "../../shared/models";
import type { WhatIf } from "../../shared/api";
import { word } from "../../shared/numbers";
import type { Node } from "../../trace/lineage";
import { serverCarrier } from "../../trace/carriers";
import { Trace, type Side, type Tensor } from "../../trace/trace";
import { tokenAt } from "../glass/view";
import type { components } from "../../generated";
import type { Question } from "./quiz";

export type TraceAnswer = components["schemas"]["TraceAnswer"];

/** A number or a word that the model computed. */
export interface Fact {
  key: string;
  label: string;
  value: number | string;
  /** Whether the value is a share of 1, shown in percent. */
  share?: boolean;
  /** The number in the trace that the glass explains. */
  node?: Node;
}

/** The answer of the model to a prediction. */
export interface Reveal {
  facts: Fact[];
  /** The right option or its index, or the right number (in percent, if percent are asked for). */
  answer: string | number;
  /** Whether this model shows what the stop states. */
  holds: boolean;
  /** Of the quiz. */
  questions?: Question[];
}

export type Prediction =
  /** Choose an option: those of the text, or words of the sentence. */
  | { kind: "choose"; options?: (live: Live) => string[] }
  /** Type a whole number. */
  | { kind: "type" }
  /** Drag a slider from 0 to `most` percent. */
  | { kind: "drag"; most: number };

export interface Stop {
  id: string;
  task: Task;
  room: string;
  /** The rest of the view that the stop opens. */
  show?: (trace: Trace) => Partial<View>;
  /** What “marked” means in the text of the stop. */
  mark?: (live: Live) => string;
  prediction: Prediction;
  reveal: (live: Live) => Promise<Reveal>;
  /** What the reveal depends on besides the text and the model. */
  depends?: (live: Live) => string;
  /** Whether the reader has done the task in the room. */
  done: (live: Live) => boolean;
  /** A change that the room has no button for. */
  action?: { label: string; change: (live: Live) => Partial<View> };
}

/** What the reader started a stop with. */
export interface Entry {
  text: string;
  target: string | null;
  word: string;
}

/** The live model at a stop: the trace of the reader's text, and the view of the room. */
export class Live {
  constructor(
    readonly app: AppContext,
    readonly trace: Trace,
    readonly entry: Entry,
  ) {}

  get view(): View {
    return this.app.view;
  }

  /** The position of the marked word: the selected one, or that of `focusOf`. */
  get focus(): number {
    const selected = tokenAt(this.view.word);
    const side = mainSide(this.trace);
    const inside = selected?.side === side && selected.at < this.trace.words(side).length;
    return inside ? selected.at : focusOf(this.trace);
  }

  /** The text of the token at a position of the input. */
  word(at: number): string {
    return word(this.trace.words(mainSide(this.trace))[at] ?? "");
  }

  get marked(): string {
    return this.word(this.focus);
  }

  /** The text of a token of the translation. */
  target(at: number): string {
    return word(this.trace.words("target")[at] ?? "");
  }

  /** Trace the model with some parts changed, on this text or another one. A translator reads the current target. */
  async traced(what_if: Partial<WhatIf> | null, text = this.view.text.trim()): Promise<Trace> {
    const { connection } = this.app;
    const { model, target } = answerOf(this.trace);
    const answer = connection.send("/v1/trace", { model, text, ...(target === null ? {} : { target }), what_if });
    const found: TraceAnswer = await connection.read(answer, (one) => one.json());
    return new Trace(found, serverCarrier(connection, found));
  }

  /** The log-probability of the translation for each change of the model. */
  async scores(changes: (Partial<WhatIf> | null)[]): Promise<number[]> {
    const { connection } = this.app;
    const { model, target } = answerOf(this.trace);
    const pairs = [{ source: this.view.text.trim(), target }];
    const found = changes.map(async (what_if) => {
      const answer = connection.send("/v1/score", { model, pairs, what_if });
      return (await connection.read(answer, (one) => one.json())).scores[0].log_prob as number;
    });
    return Promise.all(found);
  }

  async tensors(...names: string[]): Promise<Tensor[]> {
    return this.trace.tensors(names);
  }
}

/** The manifest of a trace of a service, with its id and the target that was traced. */
export const answerOf = (trace: Trace) => trace.manifest as TraceAnswer;

/** The path of a part of the stack that reads the text. */
export const inReader = (trace: Trace, part: string) => `${trace.stacks[0].name}.${part}`;

/** The path of a part of the stack that writes. */
export const inWriter = (trace: Trace, part: string) => `${trace.top.name}.${part}`;

/** The side of the reader's text: a language model has only a target. */
export const mainSide = (trace: Trace): Side => trace.stacks[0].side;

/** Whether a token stands for no text: start, end, class. Byte tokens like <0x51> stand for text. */
export const isSpecial = (token: string) => /^(<(?!0x)[^>]*>|\[[A-Z]+\])$/.test(token);

export const hasLetters = (token: string) => /\p{L}/u.test(token) && !/^<.*>$/.test(token) && !isSpecial(token);

/** The log-probability of each token of the translation, and of the end. */
export const logProbs = (trace: Trace) => (trace.manifest.log_probs ?? []).map((one) => one ?? -Infinity);

/** Labels of tokens with letters; the same word twice has its position, too. */
export function labelled(tokens: string[]): { at: number; label: string }[] {
  const labels = tokens.map(word);
  return tokens.flatMap((token, at) => {
    if (!hasLetters(token)) return [];
    const twice = labels.filter((label) => label === labels[at]).length > 1;
    return [{ at, label: twice ? `${labels[at]} (token ${at + 1})` : labels[at] }];
  });
}

/** The tokens that begin words, if the vocabulary marks them. */
export function beginnings(tokens: string[]): (at: number) => boolean {
  const marked = tokens.some((token) => /^[▁Ġ]/.test(token));
  return (at) => !marked || /^[▁Ġ]/.test(tokens[at]);
}

/** The word that a stop looks at first: “it”, or the middle one. */
export function focusOf(trace: Trace): number {
  const words = trace.words(mainSide(trace)).map(word);
  const it = words.findIndex((one) => one.toLowerCase() === "it");
  if (it >= 0) return it;
  const letters = words.flatMap((one, at) => (hasLetters(one) ? [at] : []));
  return letters[Math.floor(letters.length / 2)] ?? 0;
}

/** Select the word that a stop looks at. */
export const select = (trace: Trace): Partial<View> => ({ word: `${mainSide(trace)[0]}${focusOf(trace)}` });

/** Whether the explained number belongs to a kind of tensor. */
export const explains = (pattern: RegExp) => ({ view }: Live) => pattern.test(view.why.split("@")[0]);
