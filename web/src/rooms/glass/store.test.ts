// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { AppContext } from "../../app/context.svelte";
import { memoryAddress } from "../../app/view.svelte";
import type { Stack } from "../../trace/trace";
import { GlassStore } from "./store.svelte";

const encoder: Stack = { name: "encoder", side: "source", causal: false, layers: 1, sublayers: [] };
const decoder: Stack = { name: "decoder", side: "target", causal: true, layers: 1, sublayers: [] };
const manifest = (id: string) => ({
  id,
  model: `trace ${id}`,
  target: "b",
  parts: 1,
  config: {},
  stacks: [encoder, decoder],
  tokens: { source: ["▁a", "</s>"], target: ["<s>", "▁b", "▁c"] },
  ids: {},
  tensors: [],
});

function start(query = "") {
  const requests: string[] = [];
  let traces = 0;
  const fetch = async (path: string) => {
    requests.push(path);
    if (path === "/v1/trace") return Response.json(manifest(String(++traces)));
    return Response.json({ detail: "unknown trace." }, { status: 404 });
  };
  const app = new AppContext({ address: memoryAddress(query), fetch });
  app.models = [{ name: "marian", task: "translate" } as never];
  return { app, glass: app.use(GlassStore), requests };
}
const settled = () => new Promise((done) => setTimeout(done, 20));

test("a trace that the service no longer has is traced once more", async () => {
  const { app, glass } = start();
  glass.look();
  await settled();
  expect(glass.trace!.manifest.model).toBe("trace 1");
  const [one, other] = [glass.numbers(), glass.numbers()];
  const work = () => glass.trace!.row("logits", 0);
  await Promise.all([one.ask([], work), other.ask([], work)]);
  await settled();
  expect([glass.trace!.manifest.model, one.problem, other.problem]).toEqual(["trace 2", "", ""]);
  await one.ask([glass.trace], work);
  await settled();
  expect([glass.trace!.manifest.model, one.problem]).toEqual(["trace 2", "Unknown trace."]);
  app.close();
});

test("the clock reads the source in layers and the target in tokens", async () => {
  const { app, glass } = start("?step=3");
  glass.look();
  await settled();
  expect([glass.encoderFrames, glass.frames, glass.encoded, glass.written]).toEqual([2, 5, 1, 1]);
  expect([glass.read("source"), glass.read("target"), glass.position("target")]).toEqual([2, 1, 0]);
  glass.moveTo(1);
  expect(glass.reasonEmpty(encoder, 1)).toEqual({ reason: "Not computed yet at this step.", until: 2 });
  expect(glass.reasonEmpty(decoder, 0)).toEqual({ reason: "Not computed yet at this step.", until: 3 });
  glass.moveTo(99);
  expect([app.view.step, glass.finished]).toEqual([-1, true]);
  app.close();
});

test("selected words and heads that do not exist are ignored", async () => {
  const { app, glass } = start("?word=t7&heads=0-9-2-2");
  glass.look();
  await settled();
  expect(glass.selected).toBe(null);
  expect(glass.heads(4)).toEqual([0, 2]);
  glass.select({ side: "source", at: 1 });
  expect([app.view.word, glass.selected]).toEqual(["s1", { side: "source", at: 1 }]);
  glass.select({ side: "source", at: 1 });
  expect(app.view.word).toBe("");
  app.close();
});
