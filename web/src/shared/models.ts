/** Tasks of the served models. Only this file reads them from a model's description. */

import type { Model } from "./api";

export type Task = Model["task"];

export const taskOf = (model: Model): Task => model.task;

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
