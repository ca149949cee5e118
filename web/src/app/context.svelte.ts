/** The state of one mounted app. Two apps on one page share nothing. */

import { createContext } from "svelte";
import { Api, type Model } from "../shared/api";
import { Connection, Problem, Unreachable } from "../shared/request.svelte";
import type { Trace } from "../trace/trace";
import { Theme } from "./theme.svelte";
import { ViewState, memoryAddress, type Address } from "./view.svelte";

export interface AppOptions {
  address?: Address;
  /** Sends requests; default: the browser's. */
  fetch?: (path: string, options: RequestInit) => Promise<Response>;
  /** Remembers the reader's colours and progress. */
  storage?: Storage | null;
  /** A stored trace to show. Without one, traces come from the service. */
  trace?: Trace;
}

export class AppContext {
  readonly connection: Connection;
  readonly api: Api;
  readonly theme: Theme;
  /** The served models; the first is the default. */
  models = $state.raw<Model[]>([]);
  /** States of a training run that can be selected; they are not listed. */
  states = $state.raw<Model[]>([]);
  /** Why the service refused to list its models. */
  problem = $state("");
  readonly trace: Trace | null;
  readonly storage: Storage | null;
  private viewState: ViewState;
  private stores = new Map<unknown, unknown>();

  constructor({ address = memoryAddress(), fetch, storage = null, trace }: AppOptions) {
    this.connection = new Connection(fetch, () => this.restore());
    this.api = new Api(this.connection);
    this.storage = storage;
    this.theme = new Theme(storage);
    this.viewState = new ViewState(address);
    this.trace = trace ?? null;
  }

  get view() {
    return this.viewState.now;
  }

  get go() {
    return this.viewState.go;
  }

  get model(): Model | undefined {
    return [...this.models, ...this.states].find((one) => one.name === this.view.model) ?? this.models[0];
  }

  /** Get the served models. If the service is away, this happens when it returns. */
  async start(): Promise<void> {
    try {
      this.models = await this.api.models();
    } catch (error) {
      if (error instanceof Problem) this.problem = error.message;
      else if (!(error instanceof Unreachable)) throw error;
    }
  }

  private async restore(): Promise<void> {
    await this.connection.send("/readyz");
    this.models = await this.api.models();
  }

  /** Return this app's instance of a store. A store outlives its room, so that its content stays. */
  use<Store>(Kind: new (app: AppContext) => Store): Store {
    if (!this.stores.has(Kind)) this.stores.set(Kind, new Kind(this));
    return this.stores.get(Kind) as Store;
  }

  close(): void {
    this.connection.close();
    this.theme.close();
    this.viewState.close();
  }
}

export const [useApp, provideApp] = createContext<AppContext>();
