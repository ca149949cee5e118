/** The service's API, typed. What goes wrong becomes a sentence. */

import type { Carrier, Dtype, Manifest } from "../trace/trace";

export interface Model {
  name: string;
  architecture: "encoder-decoder" | "decoder-only" | "encoder-only";
  parameters: number;
  loaded: boolean;
  source: string | null;
  target: string | null;
  /** Sentences that came with it to try, and what is to be known of them. */
  examples: string[];
  about: string | null;
}

export interface Search {
  beam: number;
  length_penalty: number;
  sample: boolean;
  temperature: number;
  top_k: number;
  top_p: number;
  seed: number;
}

export interface Translation {
  text: string;
  score?: number;
  tokens?: string[];
  log_probs?: number[];
  alternatives?: Translation[];
}

export interface Scored {
  log_prob: number;
  tokens: string[];
  log_probs: number[];
}

export interface Alternative {
  token: string;
  log_prob: number;
  text: string;
}

export interface Beam {
  parent: number;
  step: number;
  token: string;
  text: string;
  log_prob: number;
  total: number;
  fate: "grew" | "ended" | "dropped";
  score?: number;
}

export interface Beams {
  source: string[];
  beams: Beam[];
  translations: Translation[];
}

/** `status` is 0 where the server was not reached at all. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  get gone(): boolean {
    return this.status === 0;
  }
}

async function ask(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "The server does not answer.");
  }
  if (!answer.ok) throw await problem(answer);
  return answer;
}

async function problem(answer: Response): Promise<Problem> {
  const about = await answer.json().catch(() => ({}));
  const why: string = about.detail ?? about.title ?? `status ${answer.status}`;
  return new Problem(answer.status, why.charAt(0).toUpperCase() + why.slice(1));
}

async function json<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return (await ask(path, body, signal)).json();
}

export const models = async () => (await json<{ models: Model[] }>("/v1/models")).models;

export const ready = async () => void (await ask("/readyz"));

export async function translate(model: string, text: string, search: Search, prefix = "", signal?: AbortSignal) {
  const body = { model, text, prefix, details: true, ...search };
  return (await json<{ translations: Translation[] }>("/v1/translate", body, signal)).translations[0];
}

/** The translation as it grows: `told` gets each new bit of text. */
export async function stream(
  model: string,
  text: string,
  search: Search,
  prefix: string,
  told: (more: string) => void,
  signal?: AbortSignal,
): Promise<Translation> {
  const answer = await ask("/v1/translate/stream", { model, text, prefix, ...search, beam: 1 }, signal);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (signal?.aborted) throw error;
      return { value: "", done: true };
    });
    if (done) throw new Problem(0, "The server broke off.");
    const events = (rest + value).split("\n\n");
    rest = events.pop()!;
    for (const event of events) {
      const [kind, data] = event.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      const about = JSON.parse(data);
      if (kind === "token") told(about.text);
      else if (kind === "done") return about;
      else throw new Problem(about.status ?? 500, about.detail ?? "It failed.");
    }
  }
}

export async function score(model: string, source: string, target: string, signal?: AbortSignal) {
  return (await json<{ scores: Scored[] }>("/v1/score", { model, pairs: [{ source, target }] }, signal)).scores[0];
}

export async function alternatives(
  model: string,
  text: string,
  target: string,
  position: number,
  count = 6,
  signal?: AbortSignal,
) {
  const body = { model, text, target, position, count, beam: 1 };
  return (await json<{ alternatives: Alternative[] }>("/v1/alternatives", body, signal)).alternatives;
}

export const beams = (model: string, text: string, beam: number, length_penalty: number, prefix = "", signal?: AbortSignal) =>
  json<Beams>("/v1/beams", { model, text, beam, length_penalty, nbest: beam, prefix }, signal);

/** Look into the model while it writes `target`, or its own translation where none is given. */
export function trace(model: string, text: string, target: string | null, search: Search, signal?: AbortSignal) {
  const own = target === null ? { beam: search.beam, length_penalty: search.length_penalty } : { target };
  return json<Manifest>("/v1/trace", { model, text, ...own }, signal);
}

const floats = async (answer: Response) => new Float32Array(await answer.arrayBuffer());

/** A trace that a server remembers. */
export function carrier(about: Manifest): Carrier {
  const at = `/v1/trace/${encodeURIComponent(about.id)}`;
  return {
    async tensors(names: string[], dtype: Dtype) {
      const query = new URLSearchParams([...names.map((name) => ["names", name]), ["dtype", dtype]]);
      return (await ask(`${at}?${query}`)).arrayBuffer();
    },
    async row(name: string, row: number) {
      return floats(await ask(`${at}/${encodeURIComponent(name)}?row=${row}&dtype=f32`));
    },
    async weights(parameter: string, row?: number) {
      const which = row === undefined ? "" : `?row=${row}`;
      const model = encodeURIComponent(about.model);
      return floats(await ask(`/v1/models/${model}/weights/${encodeURIComponent(parameter)}${which}`));
    },
    async pieces(ids: number[]) {
      const query = new URLSearchParams(ids.map((id) => ["ids", String(id)]));
      return (await json<{ pieces: string[] }>(`/v1/models/${encodeURIComponent(about.model)}/pieces?${query}`)).pieces;
    },
  };
}
