/** Tasks of the served models. Only this file reads them from a model's description. */

import type { Model } from "./api";

export type Task = "translate" | "write" | "read";

/** Tasks of models by the stacks that they have. */
const TASKS: Record<string, Task> = { "encoder-decoder": "translate", "decoder-only": "write", "encoder-only": "read" };

export const taskOf = (model: Model): Task => TASKS[model.architecture];

/** Requirements of a room. */
export interface Needs {
  /** One of these tasks. */
  tasks: Task[];
  /** Number of models that can do it, if one is not enough. */
  models?: number;
}

export const suits = (model: Model, { tasks }: Needs) => tasks.includes(taskOf(model));

export const suitable = (models: Model[], needs: Needs) => models.filter((model) => suits(model, needs));

/** Whether the served models meet the requirements of a room. */
export const satisfied = (models: Model[], needs: Needs) => suitable(models, needs).length >= (needs.models ?? 1);
