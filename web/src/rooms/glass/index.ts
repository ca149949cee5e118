import type { Room } from "../../app/room";
import component from "./Room.svelte";
import { GlassStore } from "./store.svelte";

export const glass: Room = {
  name: "glass",
  title: "Glass",
  about: "See every number inside the model",
  needs: { tasks: ["translate", "write", "chat", "read"] },
  component,
  computedBy: (app) => {
    const { trace, isChanged } = app.use(GlassStore);
    return trace ? trace.manifest.model + (isChanged ? " with changes" : "") : undefined;
  },
};
