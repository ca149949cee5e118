import { describe, expect, it } from "vitest";
import type { Beam } from "../../shared/api";
import { apart, bestPath, END, fateOf, grow, path, place, rowsOf, summary, walk } from "./tree";

/** A search with artificial numbers: each step keeps the best `2 * beam + 1`, as the real one does. */
function search(beam: number, length: number, seed = 1): Beam[] {
  let state = seed;
  const next = () => (state = (state * 48271) % 2147483647) / 2147483647;
  const beams: Beam[] = [];
  let living = [-1];
  for (let step = 0; step < length; step++) {
    const some = living.flatMap((parent) =>
      Array.from({ length: 2 * beam + 1 }, (_, i) => {
        const log_prob = Math.log(next());
        const token = step > 2 && i === 0 ? END : `▁w${i}`;
        return { parent, step, token, log_prob, total: (beams[parent]?.total ?? 0) + log_prob };
      }),
    );
    const best = some.sort((a, b) => b.total - a.total).slice(0, 2 * beam + 1);
    living = [];
    best.forEach((one, rank) => {
      let fate: Beam["fate"] = "dropped";
      if (one.token === END) fate = rank < beam ? "ended" : "dropped";
      else if (living.length < beam) {
        fate = "grew";
        living.push(beams.length);
      }
      const score = fate === "ended" ? one.total / (step + 1) : undefined;
      beams.push({ ...one, text: "", fate, score });
    });
  }
  return beams;
}

const SOME = [1, 2, 4, 8].flatMap((beam) => [1, 2, 3].map((seed) => ({ beam, seed, tree: grow(search(beam, 40, seed)) })));

describe("layout", () => {
  it("overlapping rows move apart, heavier ones less", () => {
    expect(apart([0, 5], [1, 1])).toEqual([0, 5]);
    expect(apart([0, 0, 0], [1, 1, 1])).toEqual([-1, 0, 1]);
    expect(apart([0, 0, 0], [1, 1, 100])).toEqual([-2, -1, 0]);
    expect(apart([], [])).toEqual([]);
  });

  it.each(SOME)("no two hypotheses overlap: $beam beams, $seed", ({ tree }) => {
    const rows = rowsOf(tree);
    const places = new Set(tree.beams.map(({ step }, at) => `${step} ${rows[at]}`));
    expect(places.size).toBe(tree.beams.length);
  });

  it.each(SOME)("siblings are in the order of their totals: $beam beams, $seed", ({ tree }) => {
    const rows = rowsOf(tree);
    for (const some of tree.children)
      for (let i = 1; i < some.length; i++) {
        expect(rows[some[i]]).toBeGreaterThan(rows[some[i - 1]]);
        expect(tree.beams[some[i]].total).toBeLessThanOrEqual(tree.beams[some[i - 1]].total);
      }
  });

  it.each(SOME)("long paths are almost straight, and the best one is straight: $beam beams, $seed", ({ tree }) => {
    const rows = rowsOf(tree);
    const bends = (way: number[]) => way.slice(1).filter((at, i) => rows[at] !== rows[way[i]]).length;
    expect(bends(path(tree, tree.beams.length - 1))).toBeLessThan(tree.steps.length / 3);
    expect(bends(bestPath(tree))).toBe(0);
  });

  it.each(SOME)("no edges cross: $beam beams, $seed", ({ tree }) => {
    const rows = rowsOf(tree);
    for (const some of tree.steps.slice(1)) {
      const downwards = [...some].sort((a, b) => rows[a] - rows[b]).map((at) => rows[tree.beams[at].parent]);
      expect(downwards).toEqual([...downwards].sort((a, b) => a - b));
    }
  });

  it.each(SOME)("the height is bounded: $beam beams, $seed", ({ beam, tree }) => {
    expect(Math.max(...rowsOf(tree))).toBeLessThan(3 * (2 * beam + 1));
  });

  it("columns do not touch and have the width of their widest hypothesis", () => {
    const tree = grow(search(4, 12));
    const { columns, width, height } = place(tree, ({ token }) => 10 * token.length, 30, 20, 40);
    expect(columns[0].x).toBe(40);
    columns.slice(1).forEach(({ x }, i) => expect(x).toBe(columns[i].x + columns[i].width + 20));
    expect(columns[5].width).toBe(10 * Math.max(...tree.steps[5].map((at) => tree.beams[at].token.length)));
    expect(width).toBe(columns[11].x + columns[11].width + 20);
    expect(height).toBe(30 * (Math.max(...rowsOf(tree)) + 1));
  });

  it("time grows linearly with the number of hypotheses", () => {
    const began = performance.now();
    rowsOf(grow(search(8, 3000)));
    expect(performance.now() - began).toBeLessThan(3000);
  });

  it("an empty tree has no height", () => {
    expect(place(grow([]), () => 1, 30, 20, 40)).toEqual({ rows: [], columns: [], width: 40, height: 0 });
  });
});

type Row = [parent: number, step: number, token: string, log_prob: number, total: number, fate: Beam["fate"], score?: number];
const one = (...[parent, step, token, log_prob, total, fate, score]: Row) =>
  ({ parent, step, token, log_prob, total, fate, score }) as Beam;

const SMALL = [
  one(-1, 0, "▁Bon", -0.5, -0.5, "grew"),
  one(-1, 0, "▁Salut", -1, -1, "grew"),
  one(-1, 0, "▁Hé", -2, -2, "dropped"),
  one(0, 1, "jour", -0.1, -0.6, "grew"),
  one(1, 1, "▁!", -0.4, -1.4, "grew"),
  one(1, 1, END, -1.5, -2.5, "dropped"),
  one(3, 2, END, -0.3, -0.9, "ended", -0.3),
  one(4, 2, END, -0.1, -1.5, "ended", -0.5),
  one(3, 2, "▁!", -1.8, -2.4, "grew"),
];

describe("the tree", () => {
  const tree = grow(SMALL);
  const rows = rowsOf(tree);

  it("has parents and children", () => {
    expect(tree.roots).toEqual([0, 1, 2]);
    expect(tree.children[3]).toEqual([6, 8]);
    expect(path(tree, 6)).toEqual([0, 3, 6]);
    expect(tree.ended).toEqual([6, 7]);
    expect(rows).toEqual([0, 1, 2, 0, 1, 2, 0, 2, 1]);
  });

  it("is navigated by arrows", () => {
    expect(walk(tree, rows, 6, "parent")).toBe(3);
    expect(walk(tree, rows, 0, "parent")).toBe(0);
    expect(walk(tree, rows, 0, "child")).toBe(3);
    expect(walk(tree, rows, 2, "child")).toBe(2);
    expect(walk(tree, rows, 6, "after")).toBe(8);
    expect(walk(tree, rows, 7, "before")).toBe(8);
    expect(walk(tree, rows, 7, "after")).toBe(7);
  });

  it("describes each fate", () => {
    expect(summary(tree, 2)).toBe("2 beams, 3 steps, 9 hypotheses, 2 finished");
    expect(fateOf(tree, 0, 2)).toBe("Kept at step 1 and continued.");
    expect(fateOf(tree, 2, 2)).toBe("Dropped at step 1: 2 other hypotheses are more likely.");
    expect(fateOf(tree, 5, 2)).toBe("Dropped at step 2: 2 other hypotheses are more likely, and an end counts only among the best 2.");
    expect(fateOf(tree, 6, 2)).toBe("Finished at step 3: the best of 2 answers.");
    expect(fateOf(tree, 7, 2)).toBe("Finished at step 3: number 2 of 2 answers.");
    expect(fateOf(tree, 8, 2)).toBe("Kept at step 3 until the search ended.");
  });

  it("counts the steps of a required beginning", () => {
    const given = one(-1, 0, "▁Hé", -2, -2, "grew");
    const forced = grow([given, one(0, 1, "▁!", -1, -3, "grew"), one(0, 1, "▁?", -2, -4, "grew")], "Hé");
    expect(forced.given).toBe(1);
    expect(fateOf(forced, 0, 2)).toBe("Required at step 1: part of the beginning that you chose.");
    expect(grow(SMALL).given).toBe(0);
  });
});
