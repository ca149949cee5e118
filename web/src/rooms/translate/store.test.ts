// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AppContext } from "../../app/context.svelte";
import { FIRST, searchOf } from "../../app/view.svelte";
import { TranslateStore } from "./store.svelte";

const usual = searchOf(FIRST);
const several = { ...usual, beams: 4 };
type Answer = (path: string, body: Record<string, unknown>) => Response | Promise<Response>;
let answers: Answer[];
let app: AppContext;
let store: TranslateStore;

beforeEach(() => {
  answers = [];
  vi.useFakeTimers();
  app = new AppContext({ fetch: async (path, { body }) => answers.shift()!(path, JSON.parse(String(body ?? "null"))) });
  store = app.use(TranslateStore);
});
afterEach(() => {
  app.close();
  vi.useRealTimers();
});

const event = (name: string, data: unknown) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const streams = (...events: string[]) => () => new Response(events.join(""));
const whole = (text: string) => () =>
  Response.json({ translations: [{ text, score: -0.1, tokens: [`▁${text}`], log_probs: [-0.1, -0.1] }] });
const refuses = () => Response.json({ detail: "too long." }, { status: 413 });
const fails = () => Promise.reject(new TypeError("no network"));
const settle = () => vi.advanceTimersByTimeAsync(400);

test("greedy search streams, beam search does not, and the last answer is kept", async () => {
  const done = { text: "Je suis", tokens: ["▁Je", "▁suis"], log_probs: [-1, -1, -1], score: -1 };
  answers.push(streams(event("token", { text: "Je" }), event("token", { text: " suis" }), event("done", done)));
  store.look("m", " I am ", usual, "");
  expect(store.busy).toBe(true);
  await settle();
  expect(store.own).toMatchObject({ source: "I am", translation: done });
  expect([store.busy, store.partial, store.before]).toEqual([false, null, null]);

  answers.push(whole("Moi"));
  store.look("m", "I am", several, "");
  await settle();
  expect(store.own?.translation.text).toBe("Moi");
  expect(store.before).toMatchObject({ translation: done, search: usual });

  answers.push(whole("Toi"));
  store.look("m", "You are", several, "");
  await settle();
  expect([store.own?.translation.text, store.before]).toEqual(["Toi", null]);
});

test("an equal request is not repeated, and a slider sends one request", async () => {
  answers.push(whole("a"));
  store.look("m", "x", several, "");
  store.look("m", "x", several, "");
  store.look("m", "x", { ...several, seed: 9 }, ""); // has no effect without sampling
  await settle();
  let requested: unknown;
  answers.push((_path, body) => ((requested = body.beams), whole("b")()));
  for (const beams of [5, 6, 7]) store.look("m", "x", { ...usual, beams }, "");
  await settle();
  expect(requested).toBe(7);
  expect(store.before?.search.beams).toBe(4);
});

test("a problem replaces the answer", async () => {
  answers.push(whole("a"), refuses);
  store.look("m", "x", several, "");
  await settle();
  store.look("m", "x y", several, "");
  await settle();
  expect([store.problem, store.own, store.busy]).toEqual(["Too long.", null, false]);
  answers.push(whole("b"));
  store.repeat("m", "x y", several, "");
  await settle();
  expect([store.problem, store.own?.translation.text]).toEqual(["", "b"]);
});

test("a service that is away leaves the answer, and the request is repeated when it returns", async () => {
  answers.push(whole("a"));
  store.look("m", "x", several, "");
  await settle();
  answers.push(fails, fails);
  store.look("m", "x y", several, "");
  await settle();
  expect([store.own?.translation.text, store.busy, store.problem, app.connection.online]).toEqual(["a", false, "", false]);
  answers.push(() => Response.json({}), () => Response.json({ data: [] }), whole("b"));
  await vi.advanceTimersByTimeAsync(2000);
  expect([store.own?.translation.text, app.connection.online]).toEqual(["b", true]);
});

test("an answer that breaks off means that the service is away", async () => {
  const broken = new ReadableStream({
    start(flow) {
      flow.enqueue(new TextEncoder().encode(event("token", { text: "Je" })));
    },
    pull: (flow) => flow.error(new TypeError("broken")),
  });
  answers.push(() => new Response(broken));
  store.look("m", "I am", usual, "");
  await settle();
  expect([store.busy, app.connection.online]).toEqual([false, false]);
});

test("the reader's choice is scored until it is removed", async () => {
  const scored = { log_prob: -3, tokens: ["▁Toi"], log_probs: [-1, -2] };
  answers.push(whole("Moi"), () => Response.json({ scores: [scored] }));
  store.look("m", "x", several, "Toi");
  await settle();
  expect(store.chosen?.translation).toEqual({ text: "Toi", tokens: ["▁Toi"], log_probs: [-1, -2], score: -1.5 });
  expect(store.own?.translation.text).toBe("Moi");
  store.look("m", "x", several, "");
  expect(store.chosen).toBe(null);
});

test("an answer never appears under the name of another model", async () => {
  answers.push(whole("a"), () => new Promise(() => {}));
  store.look("m", "x", several, "");
  await settle();
  store.look("n", "x", several, "");
  expect(store.own).toBe(null);
});
