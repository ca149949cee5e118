/**
 * A beam search as a tree: who comes from whom, where each hypothesis stands on the sheet, and what became of it.
 * The API tells hypotheses step by step, and in each step the best first; so whatever is collected here in their order
 * is ordered by their totals.
 */

import type { Beam } from "../../shared/api";
import { counted, percent } from "../../shared/numbers";

/** How the end of a text is written in a vocabulary. */
export const END = "</s>";

export interface Tree {
  beams: Beam[];
  /** Of each hypothesis, the best first. */
  children: number[][];
  /** Those that begin. */
  roots: number[];
  /** Of each step. */
  steps: number[][];
  /** The answers, the best first. */
  ended: number[];
  /** How many steps were given, not searched for. */
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
  // A search always looks at several; a step that has but one was not free to choose.
  const free = steps.findIndex((some) => some.length > 1);
  return { beams, children, roots, steps, ended, given: prefix ? (free < 0 ? steps.length : free) : 0 };
}

/** From the first token to this one. */
export function path({ beams }: Tree, at: number): number[] {
  const found: number[] = [];
  for (let here = at; here >= 0; here = beams[here].parent) found.push(here);
  return found.reverse();
}

/** From the first token of the best answer to its end. */
export const bestWay = (tree: Tree) => (tree.ended.length ? path(tree, tree.ended[0]) : []);

/** How many tokens a length penalty counts: all of them, the end too. */
export const lengthOf = (beam: Beam) => beam.step + 1;

// --- Where they stand

export interface Column {
  x: number;
  width: number;
}

export interface Layout {
  /** Of each hypothesis. */
  rows: number[];
  /** Of each step. */
  columns: Column[];
  width: number;
  height: number;
}

/**
 * Children want to stand in their parent's row, and are moved apart until each has a row of its own; those with many
 * descendants give way least, so that what lives long runs straight; the best answer gives way to none. In each step
 * the order is that of the parents, and of brothers the best comes first: so no edges cross.
 */
export function rowsOf(tree: Tree): number[] {
  const { beams, children, roots, steps } = tree;
  const weight = beams.map(() => 1);
  for (let at = beams.length - 1; at >= 0; at--) if (beams[at].parent >= 0) weight[beams[at].parent] += weight[at];
  for (const at of bestWay(tree)) weight[at] = 1e6;
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
 * Whole numbers, each larger than the one before, as near as can be to those wanted (by weighted squares). Without the
 * 1 between neighbours this is isotonic regression: where two are in the wrong order, both get their mean.
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

/** `wide`: how much room a hypothesis takes; all of a step are as wide as the widest. */
export function place(tree: Tree, wide: (beam: Beam) => number, row: number, gap: number, start: number): Layout {
  const rows = rowsOf(tree);
  const columns: Column[] = [];
  let x = start;
  for (const some of tree.steps) {
    const width = some.reduce((most, at) => Math.max(most, wide(tree.beams[at])), 0);
    columns.push({ x, width });
    x += width + gap;
  }
  const height = rows.reduce((most, here) => Math.max(most, here + 1), 0) * row;
  return { rows, columns, width: x, height };
}

// --- Walking about

export type Way = "parent" | "child" | "before" | "after";

/** Where an arrow leads: along the line, or to the neighbour above or below in the same step. */
export function walk(tree: Tree, rows: number[], at: number, way: Way): number {
  const { beams, children, steps } = tree;
  if (way === "parent") return beams[at].parent < 0 ? at : beams[at].parent;
  if (way === "child") return children[at][0] ?? at;
  const column = [...steps[beams[at].step]].sort((a, b) => rows[a] - rows[b]);
  return column[column.indexOf(at) + (way === "after" ? 1 : -1)] ?? at;
}

// --- In words

export const chance = ({ log_prob }: Beam) => percent(Math.exp(log_prob));

export function summary({ beams, steps, ended }: Tree, beam: number): string {
  const looked = `${counted(beams.length, "hypothesis", "hypotheses")} looked at`;
  return `${counted(beam, "beam")}, ${counted(steps.length, "step")}, ${looked}, ${counted(ended.length, "ended", "ended")}`;
}

/** What became of a hypothesis. `beam`: how many grew side by side. */
export function fate(tree: Tree, at: number, beam: number): string {
  const { beams, children, steps, ended, given } = tree;
  const { step, token, fate } = beams[at];
  const when = `at step ${step + 1}`;
  if (step < given && fate === "grew") return `Given ${when}: you asked for this beginning.`;
  if (fate === "ended") {
    if (ended.length === 1) return `Ended ${when}: the only answer.`;
    const rank = ended.indexOf(at) + 1;
    return `Ended ${when}: ${rank === 1 ? "the best" : `number ${rank}`} of ${counted(ended.length, "answer")}.`;
  }
  if (fate === "dropped") {
    const better = steps[step].indexOf(at);
    const others = better === 1 ? "1 other was" : `${better} others were`;
    if (token !== END) return `Dropped ${when}: ${others} likelier.`;
    const best = beam === 1 ? "as the best" : `among the best ${beam}`;
    return `Dropped ${when}: ${others} likelier, and an end counts only ${best}.`;
  }
  if (children[at].length) return `Kept ${when}, and it grew on.`;
  if (step === steps.length - 1) return `Kept ${when}; the search was over before it went on.`;
  return `Kept ${when}, but nothing that could follow was likely enough at step ${step + 2}.`;
}
