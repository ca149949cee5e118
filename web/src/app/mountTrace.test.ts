// @vitest-environment happy-dom
import { flushSync, tick } from "svelte";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import dataUrl from "../trace/stored.bin?inline";
import widget from "../widget";

const base64 = dataUrl.slice(dataUrl.indexOf(",") + 1);
const bytes = Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));

const settled = async () => {
  for (let i = 0; i < 10; i++) {
    await new Promise((done) => setTimeout(done));
    await tick();
  }
  flushSync();
};

const words = (target: Element, label: string) =>
  [...target.querySelectorAll(`[aria-label=${label}] .word`)].map((word) => word.textContent);
const SOURCE = ["The", "animal", "didn", "'", "t", "cross", "the", "street", "because", "it", "was", "too", "tired", ".", "</s>"];

beforeEach(() => {
  vi.stubGlobal("fetch", () => Promise.reject(new Error("a stored trace needs no service")));
  vi.stubGlobal("ImageData", class {
    data = new Uint8ClampedArray(0);
    constructor(width: number, height: number) {
      this.data = new Uint8ClampedArray(width * height * 4);
    }
  });
  HTMLCanvasElement.prototype.getContext = (() => ({ putImageData() {} })) as never;
  HTMLCanvasElement.prototype.toDataURL = () => "data:,";
});
afterEach(() => {
  vi.unstubAllGlobals();
  document.body.innerHTML = "";
});

function show(target: HTMLElement) {
  // In a notebook, the trace is a part of a larger buffer.
  const larger = new Uint8Array(bytes.length + 24);
  larger.set(bytes, 16);
  const view = new DataView(larger.buffer, 16, bytes.length);
  return widget.render({ model: { get: () => view }, el: target });
}

test("the widget shows the trace that it is given", async () => {
  const target = document.body.appendChild(document.createElement("div"));
  const close = show(target);
  await settled();
  expect(words(target, "Input")).toEqual(SOURCE);
  expect(words(target, "Output").slice(0, 3)).toEqual(["<s>", "Das", "Tier"]);
  expect(target.querySelectorAll(".head img")).toHaveLength(2 * 4 * 3);
  expect(target.textContent).toContain("Computed by coref");
  close();
  await settled();
  expect(target.innerHTML).toBe("");
});

test("two widgets of one notebook select words separately", async () => {
  const [one, two] = [0, 1].map(() => document.body.appendChild(document.createElement("div")));
  show(one);
  show(two);
  await settled();
  one.querySelectorAll<HTMLElement>("[aria-label=Input] .word")[9].click();
  await settled();
  const selected = (target: Element) => target.querySelectorAll(".word[aria-pressed=true]").length;
  expect([selected(one), selected(two)]).toEqual([1, 0]);
});

test("the offline page shows the trace in its file", async () => {
  document.body.innerHTML = `<div id="app"></div><script type="text/plain" id="trace">${base64}</script>`;
  await import("../offline");
  await settled();
  expect(words(document.getElementById("app")!, "Input")).toEqual(SOURCE);
});
