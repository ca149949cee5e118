/** The format of numbers and tokens on the page. */

const MINUS = "\u2212";

/** Four decimal places, or four significant digits below 1: enough to compute with the shown numbers. */
export function written(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? `${MINUS}∞` : "∞";
  const size = Math.abs(value);
  const text = size === 0 ? "0" : size >= 1e5 || size < 1e-3 ? value.toExponential(3) : size < 1 ? value.toPrecision(4) : value.toFixed(4);
  return text.replace(/-/g, MINUS);
}

/** Parse a written number. */
export function readNumber(text: string): number {
  const plain = text.trim().replaceAll(MINUS, "-");
  if (plain.endsWith("∞")) return plain.startsWith("-") ? -Infinity : Infinity;
  return Number(plain);
}

/** TeX of a number, in braces so that a line does not break inside it. */
export function inTex(value: number): string {
  const text = written(value).replaceAll(MINUS, "-").replace("∞", "\\infty");
  const power = text.indexOf("e");
  return power < 0 ? `{${text}}` : `{${text.slice(0, power)}\\cdot 10^{${Number(text.slice(power + 1))}}}`;
}

/** TeX of a number after an operator: negative numbers are in brackets. */
export function bracketed(value: number): string {
  return value < 0 ? `(${inTex(value)})` : inTex(value);
}

/** A probability in percent. */
export function percent(probability: number): string {
  const value = probability * 100;
  if (value > 0 && value < 0.05) return "< 0.1 %";
  return `${value >= 99.95 ? "100" : value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
}

export const counted = (count: number, one: string, many = `${one}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** A word with a capital. */
export const titled = (text: string) => text[0].toUpperCase() + text.slice(1);

/** A large number with a unit. */
export const size = (count: number) =>
  count >= 1e5 ? `${(count / 1e6).toFixed(1)} M` : count >= 1e3 ? `${(count / 1e3).toFixed(0)} k` : String(count);

/** The text of a token, without the mark of its space; a single space is visible. */
export function word(token: string): string {
  const bare = token.replace(/^[▁Ġ]/, "");
  return bare === "" ? "␣" : bare;
}
