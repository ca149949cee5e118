import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Translating } from "./store.svelte";
import { session } from "../../app/session.svelte";
import { FIRST, searchOf } from "../../app/view.svelte";

const usual = searchOf(FIRST);
const several = { ...usual, beam: 4 };
let answers: ((path: string, body: Record<string, unknown>) => Response | Promise<Response>)[];

beforeEach(() => {
  answers = [];
  session.there = true;
  vi.useFakeTimers();
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => answers.shift()!(path, JSON.parse(String(init.body ?? "null"))));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const event = (name: string, data: unknown) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const streams = (...events: string[]) => () => new Response(events.join(""));
const whole = (text: string) => () => Response.json({ translations: [{ text, score: -0.1, tokens: [`▁${text}`], log_probs: [-0.1, -0.1] }] });
const refuses = () => Response.json({ detail: "too long." }, { status: 413 });
const settle = () => vi.advanceTimersByTimeAsync(1000);

test("one beam is told as it grows, several come whole, and the answer before is kept", async () => {
  const it = new Translating();
  const done = { text: "Je suis", tokens: ["▁Je", "▁suis"], log_probs: [-1, -1, -1], score: -1 };
  answers.push(streams(event("token", { text: "Je" }), event("token", { text: " suis" }), event("done", done)));
  it.look("m", " I am ", usual, "");
  expect(it.busy).toBe(true);
  await settle();
  expect(it.own).toMatchObject({ source: "I am", translation: done });
  expect([it.busy, it.growing, it.before]).toEqual([false, null, null]);

  answers.push(whole("Moi"));
  it.look("m", "I am", several, "");
  await settle();
  expect(it.own?.translation.text).toBe("Moi");
  expect(it.before).toMatchObject({ translation: done, search: usual });

  answers.push(whole("Toi"));
  it.look("m", "You are", several, "");
  await settle();
  expect([it.own?.translation.text, it.before]).toEqual(["Toi", null]);
});

test("the same is not asked for twice, and a slider only where it rests", async () => {
  const it = new Translating();
  answers.push(whole("a"));
  it.look("m", "x", several, "");
  it.look("m", "x", several, "");
  it.look("m", "x", { ...several, seed: 9 }, ""); // does nothing without sample
  await settle();
  let asked: unknown;
  answers.push((_path, body) => ((asked = body.beam), whole("b")()));
  for (const beam of [5, 6, 7]) it.look("m", "x", { ...usual, beam }, "");
  await settle();
  expect(asked).toBe(7);
  expect(it.before?.search.beam).toBe(4);
});

test("a problem is told in words, and nothing old stands beside it", async () => {
  const it = new Translating();
  answers.push(refuses);
  it.look("m", "x", several, "");
  await settle();
  expect([it.problem, it.own, it.busy]).toEqual(["Too long.", null, false]);
});

test("a server that is away leaves what is there, and is asked again", async () => {
  const it = new Translating();
  answers.push(whole("a"));
  it.look("m", "x", several, "");
  await settle();
  answers.push(() => Promise.reject(new TypeError("no network")));
  it.look("m", "x y", several, "");
  await vi.advanceTimersByTimeAsync(1);
  expect([it.own?.translation.text, it.busy, it.problem, session.there]).toEqual(["a", false, "", false]);
  answers.push(whole("b"));
  it.look("m", "x y", several, "");
  await vi.advanceTimersByTimeAsync(1);
  expect(it.own?.translation.text).toBe("b");
});

test("an answer that breaks off means that the server is away", async () => {
  const it = new Translating();
  const broken = new ReadableStream({
    start(flow) {
      flow.enqueue(new TextEncoder().encode(event("token", { text: "Je" })));
    },
    pull: (flow) => flow.error(new TypeError("broken")),
  });
  answers.push(() => new Response(broken));
  it.look("m", "I am", usual, "");
  await vi.advanceTimersByTimeAsync(1);
  expect([it.busy, session.there]).toEqual([false, false]);
});

test("what the reader chose is scored, and left again", async () => {
  const it = new Translating();
  const scored = { log_prob: -3, tokens: ["▁Toi"], log_probs: [-1, -2] };
  answers.push(whole("Moi"), () => Response.json({ scores: [scored] }));
  it.look("m", "x", several, "Toi");
  await settle();
  expect(it.chosen?.translation).toEqual({ text: "Toi", tokens: ["▁Toi"], log_probs: [-1, -2], score: -1.5 });
  expect(it.own?.translation.text).toBe("Moi");
  it.look("m", "x", several, "");
  expect(it.chosen).toBe(null);
});
