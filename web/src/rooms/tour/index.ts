import type { Room } from "../../app/room";
import component from "./Room.svelte";

export const tour: Room = {
  name: "tour",
  title: "Tour",
  about: "Learn how the model works, step by step",
  needs: { tasks: ["translate", "write", "read"] },
  component,
  computedBy: () => undefined,
};
