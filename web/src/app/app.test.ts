// @vitest-environment happy-dom
import { flushSync, mount, tick, unmount } from "svelte";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import App from "./App.svelte";
import { AppContext, type AppOptions } from "./context.svelte";
import type { Room } from "./room";
import { ROOMS } from "./rooms";
import { memoryAddress } from "./view.svelte";

const model = (name: string, architecture: string) => ({
  name,
  architecture,
  task: { "encoder-decoder": "translate", "decoder-only": "write", "encoder-only": "read" }[architecture],
  parameters: 1000,
  loaded: true,
  source: "en",
  target: "de",
  examples: [`An example for ${name}.`],
  about: null,
});

/** A service with one answer per path. */
function service(models: object[], answers: Record<string, object> = {}) {
  return async (path: string) => {
    const found = path === "/v1/models" ? { data: models } : answers[path];
    return found ? Response.json(found) : Response.json({ detail: "not found." }, { status: 404 });
  };
}

let open: (() => void)[];

function start(options: AppOptions, rooms: Room[] = ROOMS) {
  const app = new AppContext(options);
  const target = document.body.appendChild(document.createElement("div"));
  const page = mount(App, { target, props: { app, rooms } });
  open.push(() => {
    app.close();
    void unmount(page);
    target.remove();
  });
  return { app, target };
}

const settled = async () => {
  for (let i = 0; i < 10; i++) {
    await new Promise((done) => setTimeout(done));
    await tick();
  }
  flushSync();
};
const tabs = (target: Element) => [...target.querySelectorAll("nav button")].map((one) => one.textContent!.trim());
const tab = (target: Element, title: string) =>
  [...target.querySelectorAll<HTMLElement>("nav button")].find((one) => one.textContent!.trim() === title)!;

beforeEach(() => {
  open = [];
  vi.stubGlobal("fetch", () => Promise.reject(new Error("an app has its own fetch")));
  HTMLCanvasElement.prototype.getContext = (() => ({ measureText: () => ({ width: 10 }) })) as never;
});
afterEach(() => {
  for (const close of open) close();
  vi.unstubAllGlobals();
});

test("two apps on one page share nothing", async () => {
  const beams = { beams: [{ parent: -1, step: 0, token: "</s>", text: "Da", log_prob: -1, total: -1, fate: "ended", score: -1 }] };
  const translation = { translations: [{ text: "Ja", score: -1, tokens: ["▁Ja"], log_probs: [-1, -1] }] };
  const both = { "/v1/beams": beams, "/v1/translate": translation };
  const one = start({ address: memoryAddress("?text=One&beams=4"), fetch: service([model("left", "encoder-decoder")], both) });
  const two = start({ address: memoryAddress("?text=Two&beams=4"), fetch: service([model("right", "encoder-decoder")]) });
  await settled();

  expect(one.target.querySelector("textarea")!.value).toBe("One");
  expect(two.target.querySelector("textarea")!.value).toBe("Two");
  expect(one.target.querySelector("header")!.textContent).toContain("left");
  expect(two.target.querySelector("header")!.textContent).toContain("right");
  expect(one.target.querySelector("[data-word]")!.textContent).toContain("Ja");
  expect(two.target.querySelector("[data-word]")).toBe(null);
  expect(two.target.querySelector("[role=alert]")!.textContent).toContain("Not found.");

  tab(one.target, "Beams").click();
  one.app.theme.toggle();
  await settled();
  expect([one.app.view.room, two.app.view.room]).toEqual(["beams", "translate"]);
  expect(one.target.querySelectorAll("[data-node]")).toHaveLength(1);
  expect([...document.querySelectorAll(".sightline")].map((root) => root.classList.contains("dark"))).toEqual([true, false]);

  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  expect(new Set(ids).size).toBe(ids.length);
});

test("a room is shown if the served models meet its needs", async () => {
  const needy: Room = { ...ROOMS[0], name: "lab", title: "Lab", needs: { tasks: ["write"], models: 2 } };
  const rooms = [...ROOMS, needy];
  const writer = start({ fetch: service([model("gpt", "decoder-only")]), address: memoryAddress("?room=glass") }, rooms);
  const writers = start(
    { fetch: service([model("gpt", "decoder-only"), model("llama", "decoder-only")]), address: memoryAddress("?room=glass") },
    rooms,
  );
  const translator = start({ fetch: service([model("marian", "encoder-decoder")]) }, rooms);
  await settled();
  expect(tabs(writer.target)).toEqual(["Glass", "Tour"]);
  expect(tabs(writers.target)).toEqual(["Glass", "Tour", "Lab"]);
  expect(tabs(translator.target)).toEqual(["Translate", "Glass", "Beams", "Tour"]);
});

test("a room opens with a model that can do its task", async () => {
  const models = [model("gpt", "decoder-only"), model("marian", "encoder-decoder")];
  const { app, target } = start({ fetch: service(models), address: memoryAddress("?room=glass") });
  await settled();
  tab(target, "Beams").click();
  await settled();
  expect([app.view.room, app.view.model]).toEqual(["beams", "marian"]);
  app.go({ model: "gpt" });
  await settled();
  expect(target.querySelector("main")!.textContent).toContain("Beams needs another model");
  [...target.querySelectorAll<HTMLElement>("main button")].find((one) => one.textContent === "Use marian")!.click();
  await settled();
  expect(app.view.model).toBe("marian");
});
