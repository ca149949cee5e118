/** Labels of hypotheses and their width. */

import type { Beam } from "../../shared/api";
import { written } from "../../shared/numbers";
import { tokenLabel } from "../../shared/words";
import { probabilityOf, END } from "./tree";

/** Longest token that is not shortened. */
const LETTERS = 20;

/** Space left and right of a label, and inside it. */
export const SIDE = 11;

export function nameOf({ token }: Beam): string {
  if (token === END) return "end";
  const label = tokenLabel(token);
  return label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label;
}

/** The probability of the token, and the score of an answer. */
export const numbersOf = (beam: Beam) =>
  beam.score == null ? probabilityOf(beam) : `${probabilityOf(beam)}  ${written(beam.score)}`;

/** Width of the square before the end token. */
export const markOf = ({ token }: Beam) => (token === END ? 14 : 0);

/** Return a function that measures labels in the fonts of the page. */
export function ruler(): (beam: Beam) => number {
  const canvas = document.createElement("canvas").getContext("2d")!;
  const probe = document.createElement("div");
  probe.className = "sightline";
  document.body.append(probe);
  const [sans, mono] = ["--sans", "--mono"].map((name) => getComputedStyle(probe).getPropertyValue(name));
  probe.remove();
  const long = (text: string, font: string) => {
    canvas.font = font;
    return canvas.measureText(text).width;
  };
  return (beam) =>
    3 * SIDE + markOf(beam) + long(nameOf(beam), `600 13px ${sans}`) + long(numbersOf(beam), `11px ${mono}`);
}
