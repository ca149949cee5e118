import type { Component } from "svelte";
import type { Needs } from "../shared/models";
import type { AppContext } from "./context.svelte";

/** A room of the page: one way to use a model, or to look inside it. */
export interface Room {
  /** Its name in the address. */
  name: string;
  title: string;
  /** Its purpose, in a few words. */
  about: string;
  needs: Needs;
  component: Component;
  /** The model that computed the content: after a change of the model, the last one until the new one answers. */
  computedBy: (app: AppContext) => string | undefined;
}
