import { expect, test } from "vitest";
import { described, effective, streams } from "./search";
import { FIRST, searchOf } from "./view.svelte";

const usual = searchOf(FIRST);

test("options without effect do not change a search", () => {
  expect(effective({ ...usual, seed: 7, temperature: 2, length_penalty: 3 })).toEqual(usual);
  expect(effective({ ...usual, sample: true, beams: 4, length_penalty: 3, seed: 7 })).toEqual({ ...usual, sample: true, seed: 7 });
  expect(effective({ ...usual, beams: 4, length_penalty: 3 })).toMatchObject({ beams: 4, length_penalty: 3 });
});

test("greedy search and sampling stream", () => {
  expect(streams(usual)).toBe(true);
  expect(streams({ ...usual, beams: 2 })).toBe(false);
  expect(streams({ ...usual, beams: 2, sample: true })).toBe(true);
});

test("the description of a search", () => {
  expect(described(usual)).toBe("1 beam");
  expect(described({ ...usual, beams: 4, length_penalty: 0.6 })).toBe("4 beams, length penalty 0.6");
  expect(described({ ...usual, sample: true, seed: 3, top_k: 10 })).toBe("sampling, seed 3, top-k 10");
});
