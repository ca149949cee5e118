import { expect, test } from "vitest";
import { at, fromHalf, read, row, Trace, type Manifest } from "./trace";

/** A packed trace, by the table of docs/reference/trace.md. */
function packed(tensors: { name: string; axes: string[]; shape: number[]; dtype: "f16" | "f32"; data: Uint16Array | Float32Array }[]): ArrayBuffer {
  let offset = 0;
  const entries = tensors.map(({ data, ...one }) => {
    const entry = { ...one, offset, bytes: data.byteLength };
    offset += Math.ceil(data.byteLength / 8) * 8;
    return entry;
  });
  let text = JSON.stringify({ version: 1, tokens: {}, about: {}, tensors: entries });
  text += " ".repeat((8 - ((16 + text.length) % 8)) % 8);
  const bytes = new Uint8Array(16 + text.length + offset);
  bytes.set([0x53, 0x49, 0x47, 0x48, 0x54, 0x4c, 0x4e, 1]);
  new DataView(bytes.buffer).setBigUint64(8, BigInt(text.length), true);
  bytes.set(new TextEncoder().encode(text), 16);
  tensors.forEach(({ data }, i) => bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 16 + text.length + entries[i].offset));
  return bytes.buffer;
}

test("half precision is converted as in IEEE 754", () => {
  const known: [number, number][] = [[0x0000, 0], [0x3c00, 1], [0xc000, -2], [0x3555, 0.333251953125], [0x7bff, 65504], [0x0001, 2 ** -24], [0xfc00, -Infinity]];
  for (const [bits, value] of known) expect(fromHalf(Uint16Array.of(bits))[0]).toBe(value);
  expect(fromHalf(Uint16Array.of(0x7e00))[0]).toBeNaN();
});

test("tensors are read as they were packed", () => {
  const data = Float32Array.from({ length: 12 }, (_, i) => i / 3);
  const [one, two] = read(packed([
    { name: "a", axes: ["head", "query", "key"], shape: [2, 2, 3], dtype: "f32", data },
    { name: "b", axes: ["position"], shape: [3], dtype: "f16", data: Uint16Array.of(0x3c00, 0, 0xbc00) },
  ]));
  expect([...one.data]).toEqual([...data]);
  expect(at(one, 1, 0, 2)).toBe(data[8]);
  expect([...row(one, 1, 1)]).toEqual([...data.slice(9)]);
  expect([...two.data]).toEqual([1, 0, -1]);
});

test("other files are refused", () => {
  expect(() => read(new ArrayBuffer(64))).toThrow("Not a trace");
});

test("a tensor is loaded once, and again after an error", async () => {
  const requested: string[][] = [];
  let fail = true;
  const about = { tensors: [{ name: "a", axes: ["position"], shape: [1] }] } as unknown as Manifest;
  const trace = new Trace(about, {
    async tensors(names) {
      requested.push(names);
      if (fail) throw new Error("gone");
      return packed([{ name: "a", axes: ["position"], shape: [1], dtype: "f32", data: Float32Array.of(5) }]);
    },
    row: async () => new Float32Array(),
    weights: async () => new Float32Array(),
    pieces: async () => [],
  });
  await expect(trace.tensor("a")).rejects.toThrow("gone");
  fail = false;
  expect((await trace.tensor("a")).data[0]).toBe(5);
  await trace.tensor("a");
  expect(requested.length).toBe(2);
});
