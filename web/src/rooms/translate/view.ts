import { flag } from "../../app/fields";

export const translateFields = {
  /** Whether words show their probabilities. */
  scores: flag(),
};
