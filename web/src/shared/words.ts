/** Words of a translation: their tokens, their probabilities, and their differences from another translation. */

import type { Translation } from "./api";
import { word } from "./numbers";

export interface Word {
  text: string;
  /** The index of its first token. */
  first: number;
  tokens: string[];
  /** The log-probability of each token; empty if unknown. */
  logProbs: number[];
  /** Whether it follows the last word without a space. */
  joined: boolean;
}

/** Scripts without spaces, in which every token counts as a word. */
const UNSPACED = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/** The label of a single token: dots mark the continuation of a word, a sign after a space shows the space. */
export function tokenLabel(token: string): string {
  const [label, spaced] = [word(token), /^[▁Ġ]/.test(token)];
  if (UNSPACED.test(label) || /^<.*>$/.test(label)) return label;
  if (/^[\p{L}\p{N}]/u.test(label)) return spaced ? label : `…${label}`;
  return spaced && label !== "␣" ? `␣${label}` : label;
}

/** The number of parts in which a text was translated. Each part has an end, with a probability and without a token. */
export function partsOf({ tokens, log_probs }: Translation): number {
  return Math.max((log_probs ?? []).length - (tokens ?? []).length, 1);
}

/** Join tokens to words. A token with ▁ (Ġ in byte-level vocabularies) begins a word. */
export function wordsOf(translation: Pick<Translation, "text" | "tokens" | "log_probs">): Word[] {
  const { text } = translation;
  const tokens = translation.tokens ?? [];
  const log_probs = translation.log_probs ?? [];
  const words: Word[] = [];
  tokens.forEach((token, i) => {
    const spaced = /^[▁Ġ]/.test(token);
    const bare = spaced ? token.slice(1) : token;
    if (!words.length || spaced || UNSPACED.test(bare))
      words.push({ text: "", first: i, tokens: [], logProbs: [], joined: !spaced });
    const word = words[words.length - 1];
    word.text += bare;
    word.tokens.push(token);
    if (i < log_probs.length) word.logProbs.push(log_probs[i]);
  });
  // Tokens may be single bytes; the text has their letters.
  const plain = split(text);
  if (plain.length === words.length) plain.forEach((one, i) => (words[i].text = one));
  return words;
}

export const split = (text: string) => text.split(/\s+/).filter(Boolean);

/** The probability of a word after all words before it. */
export const probabilityOf = (logProbs: number[]) => Math.exp(logProbs.reduce((sum, one) => sum + one, 0));

/** Limit of the table that compares two texts. */
const MOST = 4_000_000;

/** Whether each word of `now` is new: not in the longest common subsequence with `before`. */
export function changed(before: string[], now: string[]): boolean[] {
  const found = now.map(() => false);
  let start = 0;
  while (start < before.length && start < now.length && before[start] === now[start]) start++;
  let [end, last] = [now.length, before.length];
  while (end > start && last > start && now[end - 1] === before[last - 1]) end--, last--;
  const [high, wide] = [last - start, end - start];
  if (high * wide > MOST) return found.fill(true, start, end);
  // common[i][j]: the length of the longest common subsequence of the words from i and from j.
  const common = Array.from({ length: high + 1 }, () => new Uint16Array(wide + 1));
  const equal = (i: number, j: number) => before[start + i] === now[start + j];
  for (let i = high - 1; i >= 0; i--)
    for (let j = wide - 1; j >= 0; j--)
      common[i][j] = equal(i, j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  let i = 0;
  for (let j = 0; j < wide; j++) {
    while (i < high && !equal(i, j) && common[i + 1][j] === common[i][j]) i++;
    if (i < high && equal(i, j)) i++;
    else found[start + j] = true;
  }
  return found;
}

/** The sentences of a text, by its punctuation. */
export function sentencesOf(text: string, language: string | null): string[] {
  const segments = new Intl.Segmenter(language ?? "en", { granularity: "sentence" }).segment(text);
  return Array.from(segments, ({ segment }) => segment.trim()).filter(Boolean);
}

/** The English name of a language; without one, another name. */
export function languageName(code: string | null | undefined, instead: string): string {
  try {
    return (code && new Intl.DisplayNames("en", { type: "language", fallback: "none" }).of(code)) || instead;
  } catch {
    return instead; // an invalid code
  }
}
