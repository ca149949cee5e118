import { expect, test } from "vitest";
import type { Trace } from "../../trace/trace";
import { cellsOf, changesOf, described, effects, headChange, isOff, whatIf, withCell, withHead } from "./changes";

const SELF = "encoder.layers.0.self_attention";

test("the fields of the address are the request to the service", () => {
  const changes = changesOf(`positions,norms@encoder.layers.0,remove@${SELF}.0,remove@${SELF}.5,scale@${SELF}.3=-0.5,average@${SELF}.1`);
  const cells = cellsOf(`${SELF}.0.1.2=0.5`);
  expect(whatIf(changes, cells)).toEqual({
    without: ["positions", "norms@encoder.layers.0"],
    remove_heads: { [SELF]: [0, 5] },
    average_heads: { [SELF]: [1] },
    scale_heads: { [SELF]: { 3: -0.5 } },
    set_attention: { [SELF]: [{ head: 0, query: 1, key: 2, value: 0.5 }] },
  });
  expect(whatIf([], [])).toBe(null);
});

test("invalid and repeated items are ignored", () => {
  expect(changesOf(`magic,positions,positions,remove@${SELF},scale@${SELF}.1,remove@${SELF}.1=2,norms@<b>`)).toEqual(["positions"]);
  expect(cellsOf(`${SELF}.0.1=0.5,,x`)).toEqual([]);
  expect(changesOf("")).toEqual([]);
});

test("a part is off here, or in a part of the model around it", () => {
  const item = `norms@encoder.layers.1.feed_forward_residual`;
  expect(isOff([item], item)).toEqual({ here: true, above: false });
  expect(isOff(["norms"], item)).toEqual({ here: false, above: true });
  expect(isOff(["norms@encoder.layers.1"], item)).toEqual({ here: false, above: true });
  expect(isOff(["norms@encoder.layers.10", "residuals"], item)).toEqual({ here: false, above: false });
});

test("a head has one change and a cell one value", () => {
  const scaled = withHead(["positions", `remove@${SELF}.2`], SELF, 2, { how: "scale", path: SELF, head: 2, factor: 0.5 });
  expect(scaled).toEqual(["positions", `scale@${SELF}.2=0.5`]);
  expect(headChange(scaled, SELF, 2)!.factor).toBe(0.5);
  expect(withHead(scaled, SELF, 2, null)).toEqual(["positions"]);
  const at = { path: SELF, head: 0, query: 1, key: 2 };
  expect(withCell(withCell([], at, 0.5), at, 0.25)).toEqual([`${SELF}.0.1.2=0.25`]);
  expect(withCell([`${SELF}.0.1.2=0.25`], at, null)).toEqual([]);
});

test("items in words", () => {
  expect(described("look-ahead-mask")).toBe("no look-ahead mask");
  expect(described(`scale@${SELF}.2=0.5`)).toBe("head 3 × 0.5 (encoder, layer 1, self-attention)");
  expect(described("norms@encoder.layers.0.self_attention_residual")).toBe("no norms (encoder, layer 1, self-attention)");
});

test("the effect of switching positions off is that of the stack", () => {
  const stacks = [
    { name: "encoder", causal: false },
    { name: "decoder", causal: true },
  ];
  const effect = (item: string) => effects({ stacks, translates: true } as unknown as Trace, [item], [])[0];
  for (const item of ["positions", "positions@encoder", "positions@encoder.embedding"]) expect(effect(item)).toContain("the encoder");
  for (const item of ["positions@decoder", "positions@decoder.embedding"]) expect(effect(item)).toContain("came before it");
});
