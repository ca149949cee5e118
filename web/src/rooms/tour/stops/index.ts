/** All stops, in the order of the tour. */

import { TEXTS, type StopText } from "../text";
import type { Stop } from "../stop";
import * as attention from "./attention";
import * as writing from "./writing";
import * as others from "./others";
import { training } from "./training";
import * as words from "./words";

const LIVE = [...Object.values(words), ...Object.values(attention), ...Object.values(writing), ...Object.values(others), training].filter((one): one is Stop => typeof one === "object");

export interface FullStop extends Stop {
  text: StopText;
}

/** Each stop with its text. */
export const STOPS: FullStop[] = TEXTS.flatMap((text) => {
  const stop = LIVE.find(({ id }) => id === text.id);
  return stop ? [{ ...stop, text }] : [];
});
