import type { Room } from "../../app/room";
import component from "./Room.svelte";
import { BeamsStore } from "./store.svelte";

export const beams: Room = {
  name: "beams",
  title: "Beams",
  about: "Follow the search for the best answer",
  needs: { tasks: ["translate"] },
  component,
  computedBy: (app) => app.use(BeamsStore).found?.model,
};
