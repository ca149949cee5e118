import { expect, test } from "vitest";
import { cardsFile } from "./cards";
import { STOPS } from "./stops";
import { PREFACE, slug, TEXTS } from "./text";

test("each stop of the text has its code, in the same order", () => {
  expect(TEXTS.length).toBeGreaterThanOrEqual(21);
  expect(STOPS.map(({ id }) => id)).toEqual(TEXTS.map(({ id }) => id));
  expect(PREFACE).toMatch(/^The Transformer of /);
});

test.each(TEXTS.map((text) => [text.id, text] as const))("the text of %s is complete", (_, text) => {
  expect(text.question).toMatch(/\?$/);
  expect(text.intro.length).toBeGreaterThan(0);
  for (const part of [text.predict, text.look, text.do, text.then, text.remember]) expect(part).toMatch(/[.?]$/);
  const { prediction } = STOPS.find(({ id }) => id === text.id)!;
  expect(text.options.length > 0).toBe(prediction.kind === "choose" && !prediction.options);
});

test("the anchors are those of GitHub", () => {
  expect(slug("From scores to weights")).toBe("from-scores-to-weights");
  expect(slug("Feed-forward")).toBe("feed-forward");
});

test("the cards are rows of question, answer and stop", () => {
  const rows = cardsFile().trim().split("\n").filter((row) => !row.startsWith("#"));
  expect(rows).toHaveLength(TEXTS.flatMap(({ cards }) => cards).length);
  expect(rows.length).toBeGreaterThan(20);
  for (const row of rows) expect(row).toMatch(/^[^\t]+\?\t[^\t]+\.\t[a-z-]+$/);
});
