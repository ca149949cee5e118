import type { Room } from "../../app/room";
import component from "./Room.svelte";
import { TranslateStore } from "./store.svelte";

export const translate: Room = {
  name: "translate",
  title: "Translate",
  about: "Translate a text and choose other words",
  needs: { tasks: ["translate"] },
  component,
  computedBy: (app) => app.use(TranslateStore).own?.model,
};
