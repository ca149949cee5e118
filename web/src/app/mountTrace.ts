import { mount, unmount } from "svelte";
import { storedTrace } from "../trace/carriers";
import { AppContext } from "./context.svelte";
import Viewer from "./Viewer.svelte";

/** Show a stored trace in an element. Return a function that removes it. */
export function mountTrace(target: HTMLElement, bytes: ArrayBuffer): () => void {
  const app = new AppContext({ trace: storedTrace(bytes) });
  const viewer = mount(Viewer, { target, props: { app } });
  return () => {
    app.close();
    void unmount(viewer);
  };
}
