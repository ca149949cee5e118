/** The reader's way through the tour: guesses, tasks that are done, and the answer of the model at the current stop. */

import { useApp, type AppContext } from "../../app/context.svelte";
import { FIRST, RESET, type View } from "../../app/view.svelte";
import { suitable, suits } from "../../shared/models";
import type { Latest } from "../../shared/request.svelte";
import type { Trace } from "../../trace/trace";
import { GlassStore } from "../glass/store.svelte";
import { answerOf, Live, type Entry, type Reveal } from "./stop";
import { STOPS, type FullStop } from "./stops";

const KEY = "sightline-tour";

/** The bundled model and sentence, for which every stop holds. */
export const BUNDLED = "coref";
export const SENTENCE = "The animal didn't cross the street because it was too tired.";

interface Progress {
  /** Guesses by stop; "" is a stop that was revealed without one. */
  guesses: Record<string, string>;
  done: Record<string, boolean>;
  last: string;
}

/** The parts of the view that a stop begins with. */
const CLOSED: Partial<View> = { open: "", heads: "", word: "", key: -1, why: "", step: -1, beams: FIRST.beams, prefix: "", node: -1, changes: "", cells: "" };

function stored(storage: Storage | null): Progress {
  const empty = { guesses: {}, done: {}, last: "" };
  try {
    return { ...empty, ...JSON.parse(storage?.getItem(KEY) ?? "{}") };
  } catch {
    return empty; // another program wrote this key
  }
}

export class TourStore {
  private progress: Progress;
  private answers: Latest<{ stop: string; of: Trace; found: Reveal }>;
  /** The stop whose view is to be opened when the trace of the text arrives. */
  private driving = $state("");
  /** Number of views that the tour has opened. */
  opened = $state(0);
  private entry = $state.raw<Entry & { stop: string }>({ stop: "", text: "", target: null, word: "" });
  private glass: GlassStore;

  constructor(private app: AppContext) {
    const progress = $state(stored(app.storage));
    this.progress = progress;
    this.glass = app.use(GlassStore);
    this.answers = this.glass.numbers();
    const { room, open, word, why } = app.view;
    // A link with a stop and a sentence opens the view of the stop; a longer one is opened as it is.
    if (room === "translate" && !open && !word && !why) this.driving = app.view.stop;
  }

  get stop(): FullStop | null {
    return STOPS.find(({ id }) => id === this.app.view.stop) ?? null;
  }

  /** Stops that some served model can do. */
  get stops(): FullStop[] {
    return STOPS.filter((stop) => suitable(this.app.models, { tasks: [stop.task] }).length);
  }

  /** Whether the selected model can do the stop. */
  suits({ task }: FullStop): boolean {
    return this.app.model !== undefined && suits(this.app.model, { tasks: [task] });
  }

  /** The live model: once the trace of the current text has arrived. */
  get live(): Live | null {
    const { base: trace, isStored, waiting } = this.glass;
    const { model } = this.app;
    if (!trace || !model || isStored || waiting || trace.manifest.model !== model.name) return null;
    return new Live(this.app, trace, this.entry);
  }

  get last(): FullStop | null {
    return this.stops.find(({ id }) => id === this.progress.last) ?? null;
  }

  get started(): boolean {
    return this.progress.last !== "";
  }

  guess({ id }: FullStop): string | undefined {
    return this.progress.guesses[id];
  }

  isDone({ id }: FullStop): boolean {
    return this.progress.done[id] ?? false;
  }

  isComplete(stop: FullStop): boolean {
    return this.isDone(stop) && this.guess(stop) !== undefined;
  }

  get completed(): number {
    return this.stops.filter((stop) => this.isComplete(stop)).length;
  }

  get reveal(): Reveal | null {
    const { value } = this.answers;
    return value && value.stop === this.stop?.id && value.of === this.glass.base ? value.found : null;
  }

  get problem(): string {
    return this.answers.problem || this.glass.problem;
  }

  /** Open a stop, if necessary with a model that can do it. */
  open(stop: FullStop): void {
    const change: Partial<View> = { ...CLOSED, stop: stop.id, room: stop.room };
    if (this.app.states.some(({ name }) => name === this.app.view.model)) change.model = ""; // it belongs to one stop
    if (!this.suits(stop)) Object.assign(change, RESET, { model: suitable(this.app.models, { tasks: [stop.task] })[0].name });
    this.driving = stop.id;
    this.app.go(change);
  }

  /** End the tour and stay in the room. */
  leave(): void {
    this.app.go({ stop: "" });
  }

  /** The bundled model and sentence, if they are not the current ones and the service has the model. */
  get bundled(): Partial<View> | null {
    const { models, model, view } = this.app;
    const name = models.some((one) => one.name === BUNDLED) ? BUNDLED : model?.name;
    return name === model?.name && view.text === SENTENCE ? null : { ...RESET, model: name, text: SENTENCE };
  }

  useBundled(): void {
    if (!this.bundled || !this.stop) return;
    this.driving = this.stop.id;
    this.app.go({ ...CLOSED, ...this.bundled, room: this.stop.room });
  }

  /** Follow the current stop: open its view, remember where it began, and notice when its task is done. */
  follow(): void {
    const { stop, live } = this;
    if (!stop) return;
    if (this.progress.last !== stop.id) this.save({ last: stop.id });
    if (!live || !this.suits(stop)) return;
    if (this.driving === stop.id || this.entry.stop !== stop.id) {
      if (this.driving) {
        this.app.go({ room: stop.room, ...stop.show?.(live.trace) }, "replace");
        this.opened++;
      }
      this.driving = "";
      const { text, word } = this.app.view;
      this.entry = { stop: stop.id, text, target: answerOf(live.trace).target, word };
    } else if (!this.isDone(stop) && stop.done(live)) this.save({ done: { ...this.progress.done, [stop.id]: true } });
  }

  /** Ask the model for its answer, once the reader has predicted. */
  ask(): void {
    const { stop, live } = this;
    if (!stop || !live || this.driving || this.guess(stop) === undefined || !this.suits(stop)) return;
    const of = live.trace;
    const { beams, length_penalty } = this.app.view;
    void this.answers.ask([stop.id, of, stop.depends?.(live) ?? "", beams, length_penalty], async () => ({
      stop: stop.id,
      of,
      found: await stop.reveal(live),
    }));
  }

  predict(stop: FullStop, guess: string): void {
    this.save({ guesses: { ...this.progress.guesses, [stop.id]: guess } });
  }

  /** Predict again. */
  retract({ id }: FullStop): void {
    const { [id]: _, ...guesses } = this.progress.guesses;
    this.save({ guesses });
  }

  /** Note that the task of a stop without a room is done. */
  complete({ id }: FullStop): void {
    this.save({ done: { ...this.progress.done, [id]: true } });
  }

  forget(): void {
    this.save({ guesses: {}, done: {}, last: "" });
  }

  private save(change: Partial<Progress>): void {
    Object.assign(this.progress, change);
    this.app.storage?.setItem(KEY, JSON.stringify(this.progress));
  }
}

export const useTour = () => useApp().use(TourStore);
