/** The stops of models with one stack, and the quiz. */

import { at, type Trace } from "../../../trace/trace";
import { largest } from "../maths";
import { questions } from "../quiz";
import { inReader, inWriter, select, type Stop } from "../stop";
import { reordered, reversed, shuffled, withoutPositions } from "./writing";

/** The largest weight of a later token in the first self-attention. */
async function future(trace: Trace): Promise<number> {
  const weights = await trace.tensor(inReader(trace, "layers.0.self_attention.probabilities"));
  const [heads, length] = weights.shape;
  let found = 0;
  for (let h = 0; h < heads; h++) for (let q = 0; q < length; q++) for (let k = q + 1; k < length; k++) found = Math.max(found, at(weights, h, q, k));
  return found;
}

async function likeliest(trace: Trace, position: number) {
  const probabilities = await trace.row("probabilities", position);
  const best = largest(probabilities);
  const [piece] = await trace.pieces([best]);
  return { piece: piece.replace(/^[▁Ġ]/, ""), probability: probabilities[best] };
}

export const continuing: Stop = {
  id: "continuing-a-text",
  task: "write",
  room: "glass",
  show: (trace) => ({ open: inWriter(trace, "layers.0.self_attention") }),
  prediction: { kind: "drag", most: 100 },
  async reveal({ trace }) {
    const length = trace.words("target").length;
    const { piece, probability } = await likeliest(trace, length - 1);
    return {
      facts: [
        { key: "layers", label: "Layers of the one stack", value: trace.top.layers },
        { key: "next", label: "Likeliest continuation", value: piece },
        { key: "probability", label: "Its probability", value: probability, share: true },
        { key: "future", label: "Largest weight of a later token", value: await future(trace) },
      ],
      answer: probability * 100,
      holds: true,
    };
  },
  done: ({ view, entry }) => view.text.trim().startsWith(entry.text.trim()) && view.text.trim().length > entry.text.trim().length,
};

export const reading: Stop = {
  id: "reading-a-text",
  task: "read",
  room: "glass",
  show: (trace) => ({ open: inReader(trace, "layers.0.self_attention"), ...select(trace) }),
  mark: (live) => `The class token is “${live.word(0)}”. The marked word is “${live.marked}”.`,
  prediction: { kind: "choose" },
  async reveal(live) {
    const base = await live.traced(null);
    const found = await reordered(live);
    const guess = base.has("probabilities") ? await likeliest(base, live.focus) : null;
    return {
      facts: [
        ...(found
          ? [
              { key: "without", label: "Change of the class token's vector without positions", value: found.without[0] },
              { key: "with", label: "The same with positions", value: found.with[0] },
            ]
          : []),
        { key: "future", label: "Largest weight of a later token", value: await future(base) },
        ...(guess ? [{ key: "guess", label: `Guess for the place of “${live.marked}”: “${guess.piece}”`, value: guess.probability, share: true }] : []),
      ],
      answer: 0,
      holds: found !== null && found.without[0] < 1e-4 && found.with[0] > found.without[0],
    };
  },
  depends: (live) => String(live.focus),
  done: ({ view, entry }) => withoutPositions(view) && shuffled(view.text, entry.text),
  action: { label: "Reverse the words", change: ({ view }) => ({ text: reversed(view.text) }) },
};

export const quiz: Stop = {
  id: "quiz",
  task: "translate",
  room: "glass",
  show: select,
  prediction: { kind: "type" },
  async reveal(live) {
    const asked = await questions(live);
    return { facts: [], answer: asked.length, holds: true, questions: asked };
  },
  done: () => false,
};
