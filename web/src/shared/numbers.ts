/** How numbers are written, everywhere on the page. */

const MINUS = "\u2212";

/** Four places after the point; of those below 1, four digits that count: so others can be worked out from them. */
export function written(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? `${MINUS}∞` : "∞";
  const size = Math.abs(value);
  const text = size === 0 ? "0" : size >= 1e5 || size < 1e-3 ? value.toExponential(3) : size < 1 ? value.toPrecision(4) : value.toFixed(4);
  return text.replace(/-/g, MINUS);
}

/** The number that was written. */
export function readNumber(text: string): number {
  const plain = text.trim().replaceAll(MINUS, "-");
  if (plain.endsWith("∞")) return plain.startsWith("-") ? -Infinity : Infinity;
  return Number(plain);
}

/** As TeX has it: in braces, so that no line breaks inside. */
export function inTex(value: number): string {
  const text = written(value).replaceAll(MINUS, "-").replace("∞", "\\infty");
  const power = text.indexOf("e");
  return power < 0 ? `{${text}}` : `{${text.slice(0, power)}\\cdot 10^{${Number(text.slice(power + 1))}}}`;
}

/** A negative number in brackets, as it stands behind a sign. */
export function bracketed(value: number): string {
  return value < 0 ? `(${inTex(value)})` : inTex(value);
}

/** A probability, as people read it. */
export function percent(probability: number): string {
  const value = probability * 100;
  if (value > 0 && value < 0.05) return "< 0.1 %";
  return `${value >= 99.95 ? "100" : value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
}

export const counted = (count: number, one: string, many = `${one}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** Of a large number the first digits. */
export const size = (count: number) =>
  count >= 1e5 ? `${(count / 1e6).toFixed(1)} M` : count >= 1e3 ? `${(count / 1e3).toFixed(0)} k` : String(count);

/** A token as people read it: a space before a word is left out, one alone is shown. */
export function word(token: string): string {
  const bare = token.replace(/^[▁Ġ]/, "");
  return bare === "" ? "␣" : bare;
}
