import { percent } from "./numbers";

/** How likely a token is. Nothing that a model could write is impossible, so none is said to have 0. */
export const likely = (probability: number) => (probability < 0.0005 ? "< 0.1 %" : percent(probability));
