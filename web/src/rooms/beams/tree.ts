/**
 * A beam search as a tree: parents and children, layout, and the fate of each hypothesis. The API lists hypotheses step by
 * step, best first, and so do all lists here.
 */

import type { Beam } from "../../shared/api";
import { counted, percent } from "../../shared/numbers";

/** The end token. */
export const END = "</s>";

export interface Tree {
  beams: Beam[];
  /** Children of each hypothesis, best first. */
  children: number[][];
  /** Hypotheses of the first step. */
  roots: number[];
  /** Hypotheses of each step. */
  steps: number[][];
  /** Finished hypotheses, best first. */
  ended: number[];
  /** Number of steps of the required beginning. */
  given: number;
}

export function grow(beams: Beam[], prefix = ""): Tree {
  const children: number[][] = beams.map(() => []);
  const roots: number[] = [];
  const steps: number[][] = [];
  beams.forEach(({ parent, step }, at) => {
    (parent < 0 ? roots : children[parent]).push(at);
    (steps[step] ??= []).push(at);
  });
  const ended = beams.flatMap(({ fate }, at) => (fate === "ended" ? [at] : []));
  ended.sort((a, b) => beams[b].score! - beams[a].score!);
  // A search keeps several candidates; a step with one candidate was required.
  const free = steps.findIndex((some) => some.length > 1);
  return { beams, children, roots, steps, ended, given: prefix ? (free < 0 ? steps.length : free) : 0 };
}

/** The hypotheses from the first token to this one. */
export function path({ beams }: Tree, at: number): number[] {
  const found: number[] = [];
  for (let here = at; here >= 0; here = beams[here].parent) found.push(here);
  return found.reverse();
}

/** The hypotheses of the best answer. */
export const bestPath = (tree: Tree) => (tree.ended.length ? path(tree, tree.ended[0]) : []);

/** The length in the length penalty: all tokens, including the end. */
export const lengthOf = (beam: Beam) => beam.step + 1;

// --- Layout

export interface Column {
  x: number;
  width: number;
}

export interface Layout {
  /** Row of each hypothesis. */
  rows: number[];
  /** Column of each step. */
  columns: Column[];
  width: number;
  height: number;
}

/**
 * Place children in their parent's row, then move them apart until each has its own row. Hypotheses with many descendants
 * move least, the best answer does not move. Each step keeps the order of the parents, then best first, so that edges do
 * not cross.
 */
export function rowsOf(tree: Tree): number[] {
  const { beams, children, roots, steps } = tree;
  const weight = beams.map(() => 1);
  for (let at = beams.length - 1; at >= 0; at--) if (beams[at].parent >= 0) weight[beams[at].parent] += weight[at];
  for (const at of bestPath(tree)) weight[at] = 1e6;
  const rows = new Array<number>(beams.length);
  let column = roots;
  for (let step = 0; step < steps.length; step++) {
    const wanted = column.map((at) => rows[beams[at].parent] ?? 0);
    const found = apart(wanted, column.map((at) => weight[at] ** 2));
    column.forEach((at, i) => (rows[at] = found[i]));
    column = column.flatMap((at) => children[at]);
  }
  const top = rows.reduce((least, row) => Math.min(least, row), Infinity);
  return rows.map((row) => row - top);
}

/**
 * Increasing integers with the least weighted squared distance from the wanted ones: isotonic regression with a distance of
 * 1 between neighbours.
 */
export function apart(wanted: number[], weights: number[]): number[] {
  const blocks: { mean: number; weight: number; count: number }[] = [];
  wanted.forEach((value, i) => {
    let block = { mean: value - i, weight: weights[i], count: 1 };
    for (let last = blocks.at(-1); last && last.mean >= block.mean; last = blocks.at(-1)) {
      const weight = last.weight + block.weight;
      const mean = (last.mean * last.weight + block.mean * block.weight) / weight;
      block = { mean, weight, count: last.count + block.count };
      blocks.pop();
    }
    blocks.push(block);
  });
  return blocks.flatMap(({ mean, count }) => new Array<number>(count).fill(Math.round(mean))).map((row, i) => row + i);
}

/** Lay out a tree. `widthOf`: width of a hypothesis; a column is as wide as its widest one. */
export function place(tree: Tree, widthOf: (beam: Beam) => number, row: number, gap: number, start: number): Layout {
  const rows = rowsOf(tree);
  const columns: Column[] = [];
  let x = start;
  for (const some of tree.steps) {
    const width = some.reduce((most, at) => Math.max(most, widthOf(tree.beams[at])), 0);
    columns.push({ x, width });
    x += width + gap;
  }
  const height = rows.reduce((most, here) => Math.max(most, here + 1), 0) * row;
  return { rows, columns, width: x, height };
}

// --- Navigation by keyboard

export type Direction = "parent" | "child" | "before" | "after";

/** The hypothesis in a direction: parent, first child, or the one above or below in the same step. */
export function walk(tree: Tree, rows: number[], at: number, direction: Direction): number {
  const { beams, children, steps } = tree;
  if (direction === "parent") return beams[at].parent < 0 ? at : beams[at].parent;
  if (direction === "child") return children[at][0] ?? at;
  const column = [...steps[beams[at].step]].sort((a, b) => rows[a] - rows[b]);
  return column[column.indexOf(at) + (direction === "after" ? 1 : -1)] ?? at;
}

// --- Descriptions

export const probabilityOf = ({ log_prob }: Beam) => percent(Math.exp(log_prob));

export function summary({ beams: all, steps, ended }: Tree, beams: number): string {
  const hypotheses = counted(all.length, "hypothesis", "hypotheses");
  return `${counted(beams, "beam")}, ${counted(steps.length, "step")}, ${hypotheses}, ${ended.length} finished`;
}

/** The fate of a hypothesis in words. `size`: the beam size. */
export function fateOf(tree: Tree, at: number, size: number): string {
  const { beams, children, steps, ended, given } = tree;
  const { step, token, fate } = beams[at];
  const when = `at step ${step + 1}`;
  if (step < given && fate === "grew") return `Required ${when}: part of the beginning that you chose.`;
  if (fate === "ended") {
    if (ended.length === 1) return `Finished ${when}: the only answer.`;
    const rank = ended.indexOf(at) + 1;
    return `Finished ${when}: ${rank === 1 ? "the best" : `number ${rank}`} of ${counted(ended.length, "answer")}.`;
  }
  if (fate === "dropped") {
    const better = steps[step].indexOf(at);
    const others = better === 1 ? "1 other hypothesis is" : `${better} other hypotheses are`;
    if (token !== END) return `Dropped ${when}: ${others} more likely.`;
    const best = size === 1 ? "as the best" : `among the best ${size}`;
    return `Dropped ${when}: ${others} more likely, and an end counts only ${best}.`;
  }
  if (children[at].length) return `Kept ${when} and continued.`;
  if (step === steps.length - 1) return `Kept ${when} until the search ended.`;
  return `Kept ${when}, but no continuation was likely enough at step ${step + 2}.`;
}
