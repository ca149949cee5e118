/** Requests to the service: errors as problems, streams, cancellation, and a service that stops and returns. */

/** The service refused a request. The message is a sentence for the reader. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The service did not answer, or its answer broke off. */
export class Unreachable extends Error {
  constructor() {
    super("The service does not answer.");
  }
}

export interface Event {
  name: string;
  data: unknown;
}

type Fetch = (path: string, options: RequestInit) => Promise<Response>;

const RETRY_MS = 1000;

export class Connection {
  /** Whether the last request reached the service. */
  online = $state(true);
  /** Requests to repeat when the service returns. */
  private pending = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** `restore`: called while the service is away, until it succeeds. */
  constructor(
    private fetch: Fetch = (path, options) => globalThis.fetch(path, options),
    private restore: () => Promise<unknown> = () => this.send("/readyz"),
  ) {}

  /** Send a request: GET, or POST if it has a body. */
  async send(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const post: RequestInit = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let answer: Response;
    try {
      answer = await this.fetch(path, { ...(body === undefined ? {} : post), signal });
    } catch (error) {
      throw this.failure(error, signal);
    }
    if (!answer.ok) throw await problem(answer);
    return answer;
  }

  /** Send a request and yield the server-sent events of its answer. */
  async *events(path: string, body: unknown, signal?: AbortSignal): AsyncGenerator<Event> {
    const reader = (await this.send(path, body, signal)).body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const events = (rest + value).split("\n\n");
        rest = events.pop()!;
        yield* events.map(event);
      }
    } catch (error) {
      throw this.failure(error, signal);
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  /** Read a whole answer; a connection that breaks off meanwhile is noticed. */
  async read<T>(answer: Promise<Response>, content: (answer: Response) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const found = await answer;
    return content(found).catch((error) => {
      throw this.failure(error, signal);
    });
  }

  /** The error for a request that got no answer, or only a part of it. */
  failure(error: unknown, signal?: AbortSignal): unknown {
    if (signal?.aborted) return error;
    if (this.online) {
      this.online = false;
      this.timer = setTimeout(() => void this.poll(), RETRY_MS / 2);
    }
    return new Unreachable();
  }

  /** Call a function once when the service returns. Return a function that cancels this. */
  whenBack(call: () => void): () => void {
    this.pending.add(call);
    return () => this.pending.delete(call);
  }

  close(): void {
    clearTimeout(this.timer);
    this.pending.clear();
  }

  private async poll(): Promise<void> {
    try {
      await this.restore();
    } catch {
      this.timer = setTimeout(() => void this.poll(), RETRY_MS);
      return;
    }
    this.online = true;
    const calls = [...this.pending];
    this.pending.clear();
    for (const call of calls) call();
  }
}

async function problem(answer: Response): Promise<Problem> {
  const about = await answer.json().catch(() => ({}));
  const why: string = about.detail ?? about.title ?? `Status ${answer.status}.`;
  return new Problem(answer.status, why.charAt(0).toUpperCase() + why.slice(1));
}

function event(text: string): Event {
  const fields = Object.fromEntries(text.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(": ") + 2)]));
  return { name: fields.event, data: JSON.parse(fields.data) };
}

type Key = readonly unknown[];
type Work<T> = (signal: AbortSignal) => Promise<T>;

const equal = (one: Key, other: Key) => one.length === other.length && one.every((part, i) => Object.is(part, other[i]));

/**
 * The answer to a request that changes: a new request cancels the one before, an equal one is not sent again, and one
 * that did not reach the service is repeated when the service returns.
 */
export class Latest<T> {
  value = $state.raw<T | null>(null);
  /** Why the service refused the request. */
  refusal = $state.raw<Problem | null>(null);
  waiting = $state(false);
  private key: Key | null = null;
  private controller = new AbortController();

  /** `refused`: handles a problem and returns whether nothing is left to show. */
  constructor(
    private connection: Connection,
    private refused: (problem: Problem) => boolean = () => false,
  ) {}

  get problem(): string {
    return this.refusal?.message ?? "";
  }

  /** Request a value. `rest`: milliseconds without a further change before the request is sent. */
  async ask(key: Key, work: Work<T>, rest = 0): Promise<void> {
    if (this.key && equal(key, this.key)) return;
    this.cancel();
    this.key = key;
    this.refusal = null;
    this.waiting = true;
    await this.run(work, this.controller.signal, rest);
  }

  /** Cancel the request and forget its answer. */
  clear(): void {
    this.cancel();
    this.value = null;
    this.refusal = null;
  }

  /** Cancel the request and keep the last answer. The next request is sent even if it equals the last one. */
  cancel(): void {
    this.controller.abort();
    this.controller = new AbortController();
    this.key = null;
    this.waiting = false;
  }

  private async run(work: Work<T>, signal: AbortSignal, rest = 0): Promise<void> {
    try {
      if (rest) await new Promise((done) => setTimeout(done, rest));
      if (signal.aborted) return;
      const value = await work(signal);
      if (signal.aborted) return;
      this.value = value;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unreachable) {
        const forget = this.connection.whenBack(() => {
          this.waiting = true;
          void this.run(work, signal);
        });
        signal.addEventListener("abort", forget);
      } else if (error instanceof Problem) {
        if (!this.refused(error)) {
          this.refusal = error;
          this.value = null;
        }
      } else throw error;
    } finally {
      if (!signal.aborted) this.waiting = false;
    }
  }
}
