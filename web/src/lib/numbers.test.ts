import { expect, test } from "vitest";
import { inTex, readNumber, word, written } from "./numbers";

test("a written number is read as it was, to the digits that are shown", () => {
  for (const value of [0, 1, -0.5, 123.456789, 1e-5, -3.14159e-7, 99999.4, 1e6, 0.00123]) {
    const again = readNumber(written(value));
    expect(Math.abs(again - value)).toBeLessThanOrEqual(Math.max(5.1e-5, Math.abs(value) * 5e-4));
  }
  expect(readNumber(written(-Infinity))).toBe(-Infinity);
});

test("TeX knows powers and infinity", () => {
  expect(inTex(-Infinity)).toBe("-\\infty");
  expect(inTex(1.5e-7)).toBe("1.500\\cdot 10^{-7}");
});

test("words as people read them", () => {
  expect(["▁the", "Ġthe", "ing", "▁"].map(word)).toEqual(["the", "the", "ing", "␣"]);
});
