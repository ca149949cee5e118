import { expect, test } from "vitest";
import { probabilityOf, tokenLabel, changed, languageName, partsOf, sentencesOf, split, wordsOf } from "./words";

test("words keep the positions and probabilities of their tokens", () => {
  const words = wordsOf({
    text: "L'animal était fatigué.",
    tokens: ["▁L", "'", "anim", "al", "▁était", "▁fatigué", "."],
    log_probs: [-1, -2, -3, -4, -5, -6, -7, -8],
  });
  expect(words.map((word) => word.text)).toEqual(["L'animal", "était", "fatigué."]);
  expect(words.map((word) => word.first)).toEqual([0, 4, 5]);
  expect(words.map((word) => word.logProbs)).toEqual([[-1, -2, -3, -4], [-5], [-6, -7]]);
});

test("the label of a token shows whether it begins a word", () => {
  const labels = ["▁elle", "elle", "▁'", "'", "Ġthe", "▁", "<0xD7>", "</s>", "学生", "▁12", "12"].map(tokenLabel);
  expect(labels).toEqual(["elle", "…elle", "␣'", "'", "the", "␣", "<0xD7>", "</s>", "学生", "12", "…12"]);
});

test("letters of byte tokens come from the text", () => {
  const words = wordsOf({ text: "C'est l'été", tokens: ["C", "'", "est", "Ġl", "'", "Ã©", "t", "Ã©"], log_probs: [] });
  expect(words.map((word) => word.text)).toEqual(["C'est", "l'été"]);
  expect(words[1]).toMatchObject({ first: 3, logProbs: [] });
});

test("in scripts without spaces, each token is a word", () => {
  const words = wordsOf({ text: "私は学生です。", tokens: ["▁", "私は", "学生", "です", "。"] });
  expect(words.map((word) => word.text).join("")).toBe("私は学生です。");
  expect(words.slice(1).every((word) => word.joined)).toBe(true);
});

test("the probability of a word is the product of its tokens'", () => {
  expect(probabilityOf([Math.log(0.5), Math.log(0.5)])).toBeCloseTo(0.25);
  expect(probabilityOf([])).toBe(1);
});

test("parts are counted by their ends", () => {
  expect(partsOf({ text: "a b", tokens: ["a", "b"], log_probs: [0, 0, 0] })).toBe(1);
  expect(partsOf({ text: "a b", tokens: ["a", "b"], log_probs: [0, 0, 0, 0] })).toBe(2);
  expect(partsOf({ text: "a" })).toBe(1);
});

test.each([
  ["a b c", "a b c", ""],
  ["a b c", "a x c", "x"],
  ["a c", "a b c", "b"],
  ["a b c", "a c", ""],
  ["", "a b", "a b"],
  ["a b", "", ""],
  ["la rue était trop large", "elle était trop large", "elle"],
  ["x a y b z", "p a q b r", "p q r"],
])("%s → %s: %s is new", (before, now, expected) => {
  const words = split(now);
  const found = changed(split(before), words);
  expect(words.filter((_, i) => found[i]).join(" ")).toBe(expected);
});

test("texts too long to compare keep their common beginning and end", () => {
  const long = (name: string) => ["a", ...Array.from({ length: 2500 }, (_, i) => `${name}${i}`), "z"];
  const found = changed(long("x"), long("y"));
  expect(found[0] || found[found.length - 1]).toBe(false);
  expect(found.filter(Boolean)).toHaveLength(2500);
});

test("sentences and languages", () => {
  expect(sentencesOf("I am here. You are there?\nYes.", "en")).toEqual(["I am here.", "You are there?", "Yes."]);
  expect(languageName("fr", "Translation")).toBe("French");
  expect(languageName(null, "Translation")).toBe("Translation");
  expect(languageName("no code!", "Translation")).toBe("Translation");
});
