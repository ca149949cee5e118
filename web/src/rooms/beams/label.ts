/** What stands on a hypothesis, and how much room that takes. */

import type { Beam } from "../../shared/api";
import { written } from "../../shared/numbers";
import { alone } from "../../shared/words";
import { chance, END } from "./tree";

/** Of the longest token that is written out. */
const LETTERS = 20;

/** Left and right of what is written, and between. */
export const SIDE = 11;

export function nameOf({ token }: Beam): string {
  if (token === END) return "end";
  const said = alone(token);
  return said.length > LETTERS ? `${said.slice(0, LETTERS - 1)}…` : said;
}

/** What stands at the right: how likely the token is, and the score of an answer. */
export const numbersOf = (beam: Beam) =>
  beam.score == null ? chance(beam) : `${chance(beam)}  ${written(beam.score)}`;

/** Before an end stands a square. */
export const markOf = ({ token }: Beam) => (token === END ? 14 : 0);

/** A ruler, which knows the fonts of the page. */
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
