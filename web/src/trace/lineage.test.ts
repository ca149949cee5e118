/** Every number of small traces is computed again from the operands that its explanation shows. */

import { describe, expect, test } from "vitest";
import { derive, exists, valueOf, type Derivation, type Operand } from "./lineage";
import { storedTrace } from "./carriers";
import { placeOf } from "./titles";
import { manifestOf, read, Trace } from "./trace";

/** tests/browser/test_numbers.py writes traces of every architecture to this folder, and runs this file. */
const folder: string | undefined = import.meta.env.VITE_TRACES;

interface Case {
  weights: Record<string, number[] | number[][]>;
  pieces: string[];
}
const { readFileSync, readdirSync } = await import(/* @vite-ignore */ "node:fs" as string);
const names: string[] = folder ? readdirSync(folder).filter((name: string) => name.endsWith(".trace")) : [];

function opened(name: string): Trace {
  const bytes = readFileSync(`${folder}/${name}`);
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const { weights, pieces }: Case = JSON.parse(readFileSync(`${folder}/${name.replace(".trace", ".json")}`, "utf-8"));
  const tensors = new Map(read(buffer).map((one) => [one.name, one]));
  return new Trace(manifestOf(buffer), {
    tensors: async () => buffer,
    row: async (tensor, at) => {
      const { data, shape } = tensors.get(tensor)!;
      return data.subarray(at * shape[1], (at + 1) * shape[1]);
    },
    weights: async (parameter, row) => Float32Array.from((row === undefined ? weights[parameter] : weights[parameter][row]) as number[]),
    pieces: async (ids) => ids.map((id) => pieces[id]),
  });
}

function erf(x: number): number {
  if (Math.abs(x) > 4) return Math.sign(x); // to 2e-8
  let [sum, term] = [0, x];
  for (let n = 0; n < 200; n++) {
    sum += term / (2 * n + 1);
    term *= -(x * x) / (n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  "gelu-tanh": (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2,
  swish: (x) => x / (1 + Math.exp(-x)),
};

const total = (values: number[]) => values.reduce((sum, value) => sum + value, 0);
const column = (rows: Operand[][], i: number) => rows.map((row) => row[i].value);

/** The number, from the operands that are shown; NaN if the shown steps contradict each other. */
function again({ kind, rows, also }: Derivation): number {
  const values = also.map((one) => one.value);
  const named = Object.fromEntries(also.map((one) => [one.label, one.value]));
  switch (kind) {
    case "dot":
      if (rows.some(([a, b, product]) => product.value !== a.value * b.value)) return NaN;
      return total(column(rows, 2)) + total(values);
    case "factor":
      return total(rows.map(([a, b]) => a.value * b.value)) * named.factor;
    case "sum":
      return total(values);
    case "product":
      return values.reduce((product, value) => product * value, 1);
    case "quotient":
      return values[0] / values[1];
    case "softmax": {
      const most = Math.max(...column(rows, 0));
      if (rows.some(([score, power]) => power.value !== Math.exp(score.value - most))) return NaN;
      if (rows.length && named["sum of all"] !== total(column(rows, 1))) return NaN;
      return named["this one"] / named["sum of all"];
    }
    case "mask":
      return "hidden" in named ? -Infinity : named["scaled score"];
    case "norm":
      return (named["γ"] * (named.x - named["μ"])) / Math.sqrt(named["σ²"] + named["ε"]) + named["β"];
    case "mean":
      return total(column(rows, 0)) / rows.length;
    case "variance":
      if (rows.some(([x, square]) => square.value !== (x.value - named["μ"]) ** 2)) return NaN;
      return total(column(rows, 1)) / rows.length;
    case "activation":
      return ACTIVATIONS[also[0].label.slice(3, -1)](values[0]);
    case "gate":
      return ACTIVATIONS.swish(named.g) * named.x;
    case "turn":
      return values[0] * values[1] + values[2] * values[3];
    case "wave":
      return (also[0].label.includes("(sine)") ? Math.sin : Math.cos)(values[0] / values[1]);
    case "weight":
    case "same":
      return values[0];
  }
}

function* indices(shape: number[]): Generator<number[]> {
  if (!shape.length) return yield [];
  for (let i = 0; i < shape[0]; i++) for (const rest of indices(shape.slice(1))) yield [i, ...rest];
}

/** The row of a number: its query, position or key. */
function rowOf(trace: Trace, name: string, at: number[]): number {
  const axes = trace.axes(name);
  return at[axes.indexOf(["query", "position", "key"].find((axis) => axes.includes(axis))!)];
}

const seen = new Set<string>();

describe.skipIf(!folder)("traces of models", () => {
  test.each(names)("every number of %s follows from its operands", async (file) => {
    const trace = opened(file);
    const wrong: string[] = []; // an expectation for each number would take minutes
    for (const { name, shape } of trace.manifest.tensors) {
      const step = trace.step(name)!;
      const operands = new Map((step.operands ?? []).map((one) => [one.name, one.rows]));
      const linked = new Set<string>();
      seen.add(step.rule);
      for (const at of indices(shape)) {
        const made = await derive(trace, { name, at });
        const check = (holds: boolean, what: string) => holds || wrong.push(`${name}@${at}, ${step.rule}: ${what}`);
        const found = again(made);
        const size = Math.max(1, ...made.also.map((one) => Math.abs(one.value)).filter(Number.isFinite), Math.abs(made.value));
        check(found === made.value || Math.abs(found - made.value) <= 2e-5 * size, `${found} is not ${made.value}`);
        for (const words of [made.title, made.text, made.formula, made.live, placeOf(trace, made.node)])
          check(Boolean(words) && !/undefined|NaN|\{position|\{c\}/.test(words), words);
        for (const { node, value } of [...made.rows.flat(), ...made.also]) {
          if (!node) continue;
          check(exists(trace, node) && operands.has(node.name), `a link to ${node.name}@${node.at}`);
          check(operands.get(node.name) === "all" || rowOf(trace, node.name, node.at) === rowOf(trace, name, at), "a link to another row");
          check(Math.abs(value) === Math.abs(await valueOf(trace, node)), `${value} is not the number of its link`);
          linked.add(node.name);
        }
      }
      if (step.rule !== "zeros") expect([...linked].sort(), name).toEqual([...operands.keys()].sort());
    }
    expect(wrong.slice(0, 9)).toEqual([]);
  }, 600_000);

  test("the traces have all rules", () => {
    const rules: string[] = JSON.parse(readFileSync(`${folder}/rules.json`, "utf-8"));
    expect([...seen].sort()).toEqual(rules.sort());
  });
});

test.skipIf(!folder)("a file gives its tensors and their rows, and nothing else", async () => {
  const bytes = readFileSync(`${folder}/${names[0]}`);
  const trace = storedTrace(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const logits = await trace.tensor("logits");
  expect([...(await trace.row("logits", 1))]).toEqual([...logits.data.slice(logits.shape[1], 2 * logits.shape[1])]);
  await expect(trace.tensor("no.such.tensor")).rejects.toThrow("does not contain");
  await expect(trace.weights("classifier.weight", 0)).rejects.toThrow("does not contain");
});
