/** A stored trace in a notebook, as anywidget renders it: `trace` is the bytes of a trace. */

import { mountTrace } from "./app/mountTrace";

interface Model {
  get(name: "trace"): DataView;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const { buffer, byteOffset, byteLength } = model.get("trace");
  return mountTrace(el, buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer);
}

export default { render };
