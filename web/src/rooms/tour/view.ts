import { text } from "../../app/fields";

export const tourFields = {
  /** The stop of the tour that is next to the room; empty: none. */
  stop: text(),
};
