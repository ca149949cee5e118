import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Connection, Latest, Problem, Unreachable } from "./request.svelte";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const answer = (value: unknown) => Promise.resolve(Response.json(value));
function deferred() {
  let resolve!: (value: string) => void;
  const promise = new Promise<string>((done) => (resolve = done));
  return { promise, resolve };
}
const settle = (ms = 1) => vi.advanceTimersByTimeAsync(ms);

test("an error of the service is a problem with its detail", async () => {
  const connection = new Connection(() => Promise.resolve(Response.json({ detail: "too long." }, { status: 413 })));
  await expect(connection.send("/v1/translate", {})).rejects.toEqual(new Problem(413, "Too long."));
  expect(connection.online).toBe(true);
});

test("events arrive as they are sent, also in pieces", async () => {
  const pieces = ['event: token\ndata: {"te', 'xt":"a"}\n\nevent: token\nda', 'ta: {"text":"b"}\n\n'];
  const body = new ReadableStream({
    start(flow) {
      for (const piece of pieces) flow.enqueue(new TextEncoder().encode(piece));
      flow.close();
    },
  });
  const found = [];
  for await (const event of new Connection(async () => new Response(body)).events("/", {})) found.push(event);
  expect(found).toEqual([
    { name: "token", data: { text: "a" } },
    { name: "token", data: { text: "b" } },
  ]);
});

test("a request that does not reach the service is unreachable, and calls are made when it returns", async () => {
  let away = true;
  const calls: string[] = [];
  const connection = new Connection(() => (away ? Promise.reject(new TypeError("network")) : answer({})));
  await expect(connection.send("/v1/models")).rejects.toBeInstanceOf(Unreachable);
  connection.whenBack(() => calls.push("first"));
  const forget = connection.whenBack(() => calls.push("second"));
  forget();
  await settle(5000);
  expect([connection.online, calls]).toEqual([false, []]);
  away = false;
  await settle(1000);
  expect([connection.online, calls]).toEqual([true, ["first"]]);
});

test("a new request cancels the last one", async () => {
  const latest = new Latest<string>(new Connection());
  const [slow, fast] = [deferred(), deferred()];
  let signal: AbortSignal | undefined;
  void latest.ask([1], (given) => ((signal = given), slow.promise));
  void latest.ask([2], () => fast.promise);
  expect([signal!.aborted, latest.waiting]).toEqual([true, true]);
  fast.resolve("fast");
  await settle();
  slow.resolve("slow");
  await settle();
  expect([latest.value, latest.waiting]).toEqual(["fast", false]);
});

test("an equal request is not sent again, unless it was cancelled", async () => {
  const latest = new Latest<number>(new Connection());
  let sent = 0;
  const work = async () => ++sent;
  await latest.ask(["a", 1], work);
  await latest.ask(["a", 1], work);
  expect(sent).toBe(1);
  latest.cancel();
  expect(latest.value).toBe(1);
  await latest.ask(["a", 1], work);
  expect(latest.value).toBe(2);
});

test("a cancelled request is not repeated when the service returns", async () => {
  let away = true;
  const connection = new Connection(() => (away ? Promise.reject(new TypeError("network")) : answer({})));
  const latest = new Latest<string>(connection);
  let sent = 0;
  const work = () => (sent++, connection.send("/x").then(() => "done"));
  void latest.ask([1], work);
  await settle();
  expect([sent, latest.waiting]).toEqual([1, false]);
  latest.cancel();
  away = false;
  await settle(5000);
  expect([sent, latest.value]).toEqual([1, null]);
});
