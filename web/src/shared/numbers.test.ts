import { expect, test } from "vitest";
import { inTex, percent, readNumber, word, written } from "./numbers";

test("a written number is read as it was, to the digits that are shown", () => {
  for (const value of [0, 1, -0.5, 123.456789, 1e-5, -3.14159e-7, 99999.4, 1e6, 0.00123, -0.0036889, 0.0125335, 0.99996]) {
    const again = readNumber(written(value));
    expect(Math.abs(again - value)).toBeLessThanOrEqual(Math.abs(value) < 1 ? Math.abs(value) * 5.1e-4 : Math.max(5.1e-5, Math.abs(value) * 5e-4));
  }
  expect(readNumber(written(-Infinity))).toBe(-Infinity);
});

test("TeX knows powers and infinity", () => {
  expect(inTex(-Infinity)).toBe("{-\\infty}");
  expect(inTex(1.5e-7)).toBe("{1.500\\cdot 10^{-7}}");
});

test("words as people read them", () => {
  expect(["▁the", "Ġthe", "ing", "▁"].map(word)).toEqual(["the", "the", "ing", "␣"]);
});

test("small numbers have as many digits that count as others", () => {
  expect([0.0036889, 0.0125335, -0.25423, 0.00026349].map(written)).toEqual(["0.003689", "0.01253", "−0.2542", "2.635e−4"]);
});

test("a small probability is not called none", () => {
  expect([0, 0.0001, 0.0006, 0.42, 1].map(percent)).toEqual(["0.0", "< 0.1", "0.1", "42", "100"].map((text) => `${text} %`));
});
