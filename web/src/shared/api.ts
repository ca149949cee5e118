/** The service's API. Its types are generated from its OpenAPI document. */

import type { components, paths } from "../generated";
import { Problem, Unreachable, type Connection } from "./request.svelte";

type Schemas = components["schemas"];
export type Model = Schemas["ModelAbout"];
export type Translation = Schemas["Translation"];
export type Scored = Schemas["Scored"];
export type Alternative = Schemas["Alternative"];
export type Beam = Schemas["Beam"];
export type WhatIf = Schemas["WhatIf"];

/** Options of beam search and sampling. */
export interface Search {
  beams: number;
  length_penalty: number;
  sample: boolean;
  temperature: number;
  top_k: number;
  top_p: number;
  seed: number;
}

type Json<T> = T extends { content: { "application/json": infer Body } } ? Body : never;
type Operation<P extends keyof paths, M extends "get" | "post"> = Exclude<paths[P][M], undefined>;
type Body<P extends keyof paths> = Operation<P, "post"> extends { requestBody: infer Request } ? Json<Request> : never;
type Answer<P extends keyof paths, M extends "get" | "post"> =
  Operation<P, M> extends { responses: { 200: infer Found } } ? Json<Found> : never;

export class Api {
  constructor(readonly connection: Connection) {}

  async models(): Promise<Model[]> {
    return (await this.get("/v1/models")).data;
  }

  /** Translate with a model, or with a changed one. */
  async translate(model: string, text: string, search: Search, signal?: AbortSignal, what_if: WhatIf | null = null): Promise<Translation> {
    const body = { model, text, details: true, ...search, what_if };
    return (await this.post("/v1/translate", body, signal)).translations[0];
  }

  /** Translate and report each new piece of the text. */
  async stream(
    model: string,
    text: string,
    search: Search,
    report: (piece: string) => void,
    signal?: AbortSignal,
  ): Promise<Translation> {
    const body: Body<"/v1/translate/stream"> = { model, text, ...search, beams: 1 };
    for await (const { name, data } of this.connection.events("/v1/translate/stream", body, signal)) {
      if (name === "token") report((data as { text: string }).text);
      else if (name === "done") return data as Translation;
      else {
        const { status, detail } = data as Schemas["Problem"];
        throw new Problem(status, detail);
      }
    }
    throw this.connection.failure(new Unreachable(), signal);
  }

  async score(model: string, source: string, target: string, signal?: AbortSignal): Promise<Scored> {
    return (await this.post("/v1/score", { model, pairs: [{ source, target }] }, signal)).scores[0];
  }

  async alternatives(
    model: string,
    text: string,
    target: string,
    position: number,
    count: number,
    signal?: AbortSignal,
  ): Promise<Alternative[]> {
    const body = { model, text, target, position, count, beams: 1 };
    return (await this.post("/v1/alternatives", body, signal)).alternatives;
  }

  /** All hypotheses of a beam search that begins with a prefix. */
  async beams(
    model: string,
    text: string,
    { beams, length_penalty }: Pick<Search, "beams" | "length_penalty">,
    prefix: string,
    signal?: AbortSignal,
  ): Promise<Beam[]> {
    const body = { model, text, beams, nbest: beams, length_penalty, prefix };
    return (await this.post("/v1/beams", body, signal)).beams;
  }

  /** Trace the model with a target; null: with its own translation. */
  trace(model: string, text: string, target: string | null, search: Search, signal?: AbortSignal, what_if: WhatIf | null = null) {
    const { beams, length_penalty } = search;
    const body = { model, text, what_if, ...(target === null ? { beams, length_penalty } : { target }) };
    return this.post("/v1/trace", body, signal);
  }

  private get<P extends keyof paths>(path: P): Promise<Answer<P, "get">> {
    return this.connection.read(this.connection.send(path), (answer) => answer.json());
  }

  private post<P extends keyof paths>(path: P, body: Body<P>, signal?: AbortSignal): Promise<Answer<P, "post">> {
    return this.connection.read(this.connection.send(path, body, signal), (answer) => answer.json(), signal);
  }
}
