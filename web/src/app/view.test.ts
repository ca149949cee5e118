import { expect, test } from "vitest";
import { tokenAt } from "../rooms/glass/view";
import { FIRST, fromAddress, memoryAddress, RESET, toAddress, ViewState, type View } from "./view.svelte";

test("an address has the values that are not the first", () => {
  expect(toAddress(FIRST)).toBe("");
  const view: View = { ...FIRST, room: "glass", text: "a & b = ü?", beams: 3, top_p: 0.9, sample: true, word: "t4", why: "logits@1,2" };
  expect(fromAddress(toAddress(view))).toEqual(view);
});

test("invalid values are the first, and those beyond a limit are the limit", () => {
  const view = fromAddress("?beams=1000&temperature=warm&top_p=-1&step=2.4&unknown=1");
  expect(view).toEqual({ ...FIRST, beams: 16, top_p: 0.01, step: 2 });
});

// Links that version 0.1 wrote.
test.each<[string, Partial<View>]>([
  ["", {}],
  [
    "?model=coref&text=I+am+a+student.&beam=4&length_penalty=0.6&scores=1",
    { model: "coref", text: "I am a student.", beams: 4, length_penalty: 0.6, scores: true },
  ],
  [
    "?text=%22Hi%22+%26+bye&target=Da.&sample=1&temperature=0.7&top_k=10&top_p=0.9&seed=42",
    { text: '"Hi" & bye', target: "Da.", sample: true, temperature: 0.7, top_k: 10, top_p: 0.9, seed: 42 },
  ],
  [
    "?room=glass&text=The+dog.&word=t5&open=decoder.layers.1.cross_attention&heads=0-2&key=3&why=decoder.norm.output%401%2C1&step=4",
    {
      room: "glass",
      text: "The dog.",
      word: "t5",
      open: "decoder.layers.1.cross_attention",
      heads: "0-2",
      key: 3,
      why: "decoder.norm.output@1,1",
      step: 4,
    },
  ],
  ["?room=beams&beam=3&prefix=Das+Tier&node=7&table=1&step=2", { room: "beams", beams: 3, prefix: "Das Tier", node: 7, table: true, step: 2 }],
  ["?room=beams&beam=1000", { room: "beams", beams: 16 }],
])("a link of version 0.1 opens the same view: %s", (link, view) => {
  expect(fromAddress(link)).toEqual({ ...FIRST, ...view });
});

test("another text resets what belongs to the last one", () => {
  expect(RESET).toEqual({ target: "", step: -1, word: "", key: -1, cells: "", why: "", prefix: "", node: -1 });
});

test("a change is written to the address once", () => {
  const written: string[] = [];
  const address = { ...memoryAddress("?beam=4"), write: (query: string) => written.push(query) };
  const { now, go } = new ViewState(address);
  expect(now.beams).toBe(4);
  go({ beams: 4 });
  go({ beams: 5 });
  expect(written).toEqual(["?beams=5"]);
});

test("the name of a token", () => {
  expect(tokenAt("t12")).toEqual({ side: "target", at: 12 });
  expect(tokenAt("s0")).toEqual({ side: "source", at: 0 });
  expect(tokenAt("x1")).toBeNull();
});
