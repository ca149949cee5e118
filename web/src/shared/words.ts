/** A translation as words: which tokens each is made of, how probable it is, and which ones another answer has not. */

import type { Translation } from "./api";
import { word } from "./numbers";

export interface Word {
  text: string;
  /** Where its first token stands among all tokens. */
  first: number;
  tokens: string[];
  /** Of each of its tokens; none where they are not known. */
  logProbs: number[];
  /** Whether no space stands before it. */
  joined: boolean;
}

/** Scripts that write no spaces: there, every token is looked at by itself. */
const UNSPACED = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/** A token by itself: one that goes on with a word begins with dots, and a sign behind a space tells the space. */
export function alone(token: string): string {
  const [said, spaced] = [word(token), /^[▁Ġ]/.test(token)];
  if (UNSPACED.test(said) || /^<.*>$/.test(said)) return said;
  if (/^[\p{L}\p{N}]/u.test(said)) return spaced ? said : `…${said}`;
  return spaced && said !== "␣" ? `␣${said}` : said;
}

/** A long text is translated in parts, each with an end of its own, which only the number of probabilities tells. */
export function partsOf({ tokens, log_probs }: Translation): number {
  return Math.max((log_probs ?? []).length - (tokens ?? []).length, 1);
}

/** Where tokens begin a word: a space is written as ▁, in byte-level vocabularies as Ġ. */
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
  // Tokens may be single bytes, which nobody reads; the text itself has the letters.
  const plain = split(text);
  if (plain.length === words.length) plain.forEach((one, i) => (words[i].text = one));
  return words;
}

export const split = (text: string) => text.split(/\s+/).filter(Boolean);

/** How probable a word was, after all that stands before it. */
export const chance = (logProbs: number[]) => Math.exp(logProbs.reduce((sum, one) => sum + one, 0));

/** The most cells of a table that is filled to compare two texts. */
const MOST = 4_000_000;

/** Which words of `now` are not those of `before`: all but a longest common subsequence. */
export function changed(before: string[], now: string[]): boolean[] {
  const found = now.map(() => false);
  let start = 0;
  while (start < before.length && start < now.length && before[start] === now[start]) start++;
  let [end, last] = [now.length, before.length];
  while (end > start && last > start && now[end - 1] === before[last - 1]) end--, last--;
  const [high, wide] = [last - start, end - start];
  if (high * wide > MOST) return found.fill(true, start, end);
  // common[i][j]: how many words the rests from i and j have in common, in order.
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

/** The sentences of a text, as far as that can be told by its marks. */
export function sentencesOf(text: string, language: string | null): string[] {
  const segments = new Intl.Segmenter(language ?? "en", { granularity: "sentence" }).segment(text);
  return Array.from(segments, ({ segment }) => segment.trim()).filter(Boolean);
}

/** A language's name in English; where there is none, what is given instead. */
export function languageName(code: string | null | undefined, instead: string): string {
  try {
    return (code && new Intl.DisplayNames("en", { type: "language", fallback: "none" }).of(code)) || instead;
  } catch {
    return instead; // no code of a language at all
  }
}
