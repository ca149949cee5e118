import { expect, test } from "vitest";
import { inTex, percent, readNumber, word, written } from "./numbers";

test("a written number is parsed to its shown digits", () => {
  for (const value of [0, 1, -0.5, 123.456789, 1e-5, -3.14159e-7, 99999.4, 1e6, 0.00123, -0.0036889, 0.0125335, 0.99996]) {
    const again = readNumber(written(value));
    expect(Math.abs(again - value)).toBeLessThanOrEqual(Math.abs(value) < 1 ? Math.abs(value) * 5.1e-4 : Math.max(5.1e-5, Math.abs(value) * 5e-4));
  }
  expect(readNumber(written(-Infinity))).toBe(-Infinity);
});

test("TeX of powers and infinity", () => {
  expect(inTex(-Infinity)).toBe("{-\\infty}");
  expect(inTex(1.5e-7)).toBe("{1.500\\cdot 10^{-7}}");
});

test("the text of tokens", () => {
  expect(["▁the", "Ġthe", "ing", "▁"].map(word)).toEqual(["the", "the", "ing", "␣"]);
});

test("small numbers have four significant digits", () => {
  expect([0.0036889, 0.0125335, -0.25423, 0.00026349].map(written)).toEqual(["0.003689", "0.01253", "−0.2542", "2.635e−4"]);
});

test("a small probability is not shown as 0", () => {
  expect([0, 0.0001, 0.0006, 0.42, 1].map(percent)).toEqual(["0.0", "< 0.1", "0.1", "42", "100"].map((text) => `${text} %`));
});
