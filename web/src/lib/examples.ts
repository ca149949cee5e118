/** Sentences to try. A model that knows few words is tried with those it knows; what it knows is said beside them. */

export interface Examples {
  sentences: string[];
  /** What else is to be said about them. */
  about?: string;
}

const RIDDLE = [
  "The animal didn't cross the street because it was too tired.",
  "The animal didn't cross the street because it was too wide.",
];

const USUAL: Examples = { sentences: [...RIDDLE, "Where is the nearest station?", "I am a student."] };

/** By the model's name. */
const SMALL: Record<string, Examples> = {
  coref: {
    sentences: [...RIDDLE, "Yesterday the bear crossed the brown field.", "The old cow could not see the yard."],
    about: "It knows a small world of animals and places, and no other words.",
  },
};

export const examplesFor = (model: string): Examples => SMALL[model] ?? USUAL;
