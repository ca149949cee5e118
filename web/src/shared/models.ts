/** What the served models can do. Only this file knows how a model says so. */

import type { Model } from "./api";

export type Task = "translate" | "write" | "read";

/** Tasks of models by the stacks that they have. */
const TASKS: Record<string, Task> = { "encoder-decoder": "translate", "decoder-only": "write", "encoder-only": "read" };

export const taskOf = (model: Model): Task => TASKS[model.architecture];

/** What a room needs of the served models. */
export interface Needs {
  /** One of these tasks. */
  tasks: Task[];
  /** Number of models that can do it, if one is not enough. */
  models?: number;
}

export const suits = (model: Model, { tasks }: Needs) => tasks.includes(taskOf(model));

export const suitable = (models: Model[], needs: Needs) => models.filter((model) => suits(model, needs));

/** Whether the served models have all that a room needs. */
export const satisfied = (models: Model[], needs: Needs) => suitable(models, needs).length >= (needs.models ?? 1);
