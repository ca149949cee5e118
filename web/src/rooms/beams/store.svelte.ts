/** The search on screen, and the one without its required beginning. */

import { useApp, type AppContext } from "../../app/context.svelte";
import { Latest } from "../../shared/request.svelte";
import { grow, type Tree } from "./tree";

export interface Request {
  model: string;
  text: string;
  beams: number;
  length_penalty: number;
  prefix: string;
}

/** A search with its options, from which the sliders may already differ. */
export interface Found extends Request {
  tree: Tree;
}

/** Milliseconds without a change before a request: a slider passes many values. */
const REST = 150;

export class BeamsStore {
  private searches: Latest<{ found: Found; free: Found }>;

  constructor(private app: AppContext) {
    this.searches = new Latest(app.connection);
  }

  get found(): Found | null {
    return this.searches.value?.found ?? null;
  }

  /** The search without the required beginning; the same one if it has none. */
  get free(): Found | null {
    return this.searches.value?.free ?? null;
  }

  get problem(): string {
    return this.searches.problem;
  }

  /** Whether the service refused the text, for example because it has several sentences. */
  get invalid(): boolean {
    return this.searches.refusal?.status === 422;
  }

  get waiting(): boolean {
    return this.searches.waiting;
  }

  ask(request: Request): void {
    if (!request.text) this.searches.clear();
    else void this.searches.ask([JSON.stringify(request)], (signal) => this.both(request, signal), this.found ? REST : 0);
  }

  private async both(request: Request, signal: AbortSignal): Promise<{ found: Found; free: Found }> {
    const unforced = { ...request, prefix: "" };
    const [found, free] = await Promise.all([
      request.prefix ? this.search(request, signal) : null,
      this.known(unforced) ?? this.search(unforced, signal),
    ]);
    return { found: found ?? free, free };
  }

  private async search(request: Request, signal: AbortSignal): Promise<Found> {
    const beams = await this.app.api.beams(request.model, request.text, request, request.prefix, signal);
    return { ...request, tree: grow(beams, request.prefix) };
  }

  private known(request: Request): Found | null {
    const same = (key: keyof Request) => this.free?.[key] === request[key];
    return (Object.keys(request) as (keyof Request)[]).every(same) ? this.free : null;
  }
}

export const useBeams = () => useApp().use(BeamsStore);
