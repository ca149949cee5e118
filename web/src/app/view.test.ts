import { expect, test } from "vitest";
import { FIRST, fromAddress, toAddress, tokenAt, type View } from "./view.svelte";

test("an address says what is on screen, and nothing else", () => {
  expect(toAddress(FIRST)).toBe("");
  const view: View = { ...FIRST, room: "glass", text: "a & b = ü?", beam: 3, top_p: 0.9, sample: true, word: "t4", why: "logits@1,2" };
  expect(fromAddress(toAddress(view))).toEqual(view);
});

test("what an address says wrongly is as at first, or at the bound", () => {
  const view = fromAddress("?room=cellar&beam=1000&temperature=warm&top_p=-1&step=2.4&unknown=1");
  expect(view).toEqual({ ...FIRST, beam: 16, top_p: 0.01, step: 2 });
});

test("a token's name", () => {
  expect(tokenAt("t12")).toEqual({ side: "target", at: 12 });
  expect(tokenAt("s0")).toEqual({ side: "source", at: 0 });
  expect(tokenAt("x1")).toBeNull();
});
