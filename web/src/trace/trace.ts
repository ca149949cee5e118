/**
 * A trace: all numbers that a model computed for one text. It has a manifest, and tensors that are loaded when they are
 * needed. The format of the bytes is in docs/reference/trace.md; a carrier gets them from a service or a file.
 */

import type { components } from "../generated";

type Schemas = components["schemas"];
export type Dtype = "f16" | "f32";

export interface Tensor {
  name: string;
  axes: string[];
  shape: number[];
  data: Float32Array;
}

/**
 * The contents of a trace: the same from a service, which adds its id and target, and from a file. A service also adds
 * the log-probabilities of the tokens and the changes to the model.
 */
export type Manifest = Omit<Schemas["TraceAnswer"], "id" | "target" | "log_probs" | "what_if"> &
  Partial<Pick<Schemas["TraceAnswer"], "log_probs" | "what_if">>;
export type Stack = Schemas["Stack"];
export type Side = Stack["side"];
/** How a tensor is computed. */
export type Step = Schemas["Step"];

/** The source of a trace's bytes. */
export interface Carrier {
  tensors(names: string[], dtype: Dtype): Promise<ArrayBuffer>;
  /** One row of the first axis, in single precision. */
  row(name: string, row: number): Promise<Float32Array>;
  /** A row of a weight matrix, or a whole bias. */
  weights(parameter: string, row?: number): Promise<Float32Array>;
  /** The text of entries of the vocabulary. */
  pieces(ids: number[]): Promise<string[]>;
}

const MAGIC = [0x53, 0x49, 0x47, 0x48, 0x54, 0x4c, 0x4e, 1]; // SIGHTLN, version 1

/** The description at the beginning of a packed trace, and the offset of its numbers. */
function opened(buffer: ArrayBuffer) {
  const bytes = new Uint8Array(buffer);
  if (MAGIC.some((byte, i) => bytes[i] !== byte)) throw new Error("Not a trace of version 1.");
  const length = Number(new DataView(buffer).getBigUint64(8, true));
  return { manifest: JSON.parse(new TextDecoder().decode(bytes.subarray(16, 16 + length))), start: 16 + length };
}

/** The description of a packed trace. */
export const manifestOf = (buffer: ArrayBuffer): Manifest => opened(buffer).manifest;

/** The tensors of a packed trace. */
export function read(buffer: ArrayBuffer): Tensor[] {
  const { manifest, start } = opened(buffer);
  return manifest.tensors.map((one: Tensor & { dtype: Dtype; offset: number; bytes: number }) => {
    const raw = buffer.slice(start + one.offset, start + one.offset + one.bytes);
    const data = one.dtype === "f16" ? fromHalf(new Uint16Array(raw)) : new Float32Array(raw);
    return { name: one.name, axes: one.axes, shape: one.shape, data };
  });
}

let halves: Float32Array | undefined;

/** Convert half precision to single. The table of all 65,536 values is computed once. */
export function fromHalf(bits: Uint16Array): Float32Array {
  halves ??= Float32Array.from({ length: 65536 }, (_, h) => {
    const sign = h & 0x8000 ? -1 : 1;
    const exponent = (h >> 10) & 31;
    const fraction = h & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
  const found = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) found[i] = halves[bits[i]];
  return found;
}

export class Trace {
  private tensorOf: Map<string, Manifest["tensors"][number]>;
  private found = new Map<string, Promise<Tensor>>();
  private rows = new Map<string, Promise<Float32Array>>();

  constructor(
    readonly manifest: Manifest,
    private carrier: Carrier,
  ) {
    this.tensorOf = new Map(manifest.tensors.map((one) => [one.name, one]));
  }

  get config(): Manifest["config"] {
    return this.manifest.config;
  }

  /** The stacks of the model, in the order of computation. */
  get stacks(): Stack[] {
    return this.manifest.stacks;
  }

  /** The last stack, which predicts tokens. */
  get top(): Stack {
    return this.stacks[this.stacks.length - 1];
  }

  /** Whether the model reads a source and writes a target. */
  get translates(): boolean {
    return this.stacks.length > 1;
  }

  words(side: Side): string[] {
    return this.manifest.tokens[side] ?? [];
  }

  has(name: string): boolean {
    return this.tensorOf.has(name);
  }

  shape(name: string): number[] {
    return this.tensorOf.get(name)?.shape ?? [];
  }

  axes(name: string): string[] {
    return this.tensorOf.get(name)?.axes ?? [];
  }

  /** By axis of a tensor: the side whose tokens are along it. */
  sides(name: string): Record<string, Side | undefined> {
    return this.tensorOf.get(name)?.sides ?? {};
  }

  /** How a tensor is computed. */
  step(name: string): Step | undefined {
    return this.tensorOf.get(name)?.lineage ?? undefined;
  }

  /** Load tensors by name, those that are missing in one request: in half precision for pictures, in single for numbers. */
  tensors(names: string[], dtype: Dtype = "f32"): Promise<Tensor[]> {
    const key = (name: string) => `${dtype} ${name}`;
    const missing = names.filter((name) => !this.found.has(key(name)));
    if (missing.length) {
      const block = this.carrier.tensors(missing, dtype).then(read);
      for (const name of missing) this.keep(this.found, key(name), block.then((all) => all.find((one) => one.name === name)!));
    }
    return Promise.all(names.map((name) => this.found.get(key(name))!));
  }

  async tensor(name: string, dtype: Dtype = "f32"): Promise<Tensor> {
    return (await this.tensors([name], dtype))[0];
  }

  /** Load one row of a large tensor. */
  row(name: string, row: number): Promise<Float32Array> {
    const key = `${name} ${row}`;
    if (!this.rows.has(key)) this.keep(this.rows, key, this.carrier.row(name, row));
    return this.rows.get(key)!;
  }

  weights(parameter: string, row?: number): Promise<Float32Array> {
    const key = `weights ${parameter} ${row ?? ""}`;
    if (!this.rows.has(key)) this.keep(this.rows, key, this.carrier.weights(parameter, row));
    return this.rows.get(key)!;
  }

  pieces(ids: number[]): Promise<string[]> {
    return this.carrier.pieces(ids);
  }

  /** Keep a result for later calls, unless its request fails. */
  private keep<T>(where: Map<string, Promise<T>>, key: string, promise: Promise<T>): void {
    where.set(key, promise);
    promise.catch(() => where.delete(key));
  }
}

/** The index of an element in a tensor's data. */
export function offset(shape: number[], at: number[]): number {
  return at.reduce((sum, index, axis) => sum * shape[axis] + index, 0);
}

/** One element. */
export function at(tensor: Tensor, ...index: number[]): number {
  return tensor.data[offset(tensor.shape, index)];
}

/** The numbers along the last axis. */
export function row(tensor: Tensor, ...index: number[]): Float32Array {
  const width = tensor.shape[tensor.shape.length - 1];
  const start = offset(tensor.shape, [...index, 0]);
  return tensor.data.subarray(start, start + width);
}
