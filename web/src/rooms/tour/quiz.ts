/** Questions about the reader's own sentence. The model has the answers. */

import { word } from "../../shared/numbers";
import { at } from "../../trace/trace";
import { largest } from "./maths";
import { inReader, labelled, type Live } from "./stop";
import { leastSure } from "./stops/writing";
import { headsOf } from "./stops/words";

export interface Question {
  text: string;
  options: string[];
  /** The index of the right option. */
  answer: number;
  /** The stop that explains it. */
  stop: string;
}

/** Different options with the right one among them, in the order of `rank`. */
function choice(text: string, stop: string, right: string, wrong: string[], rank: (one: string) => number): Question {
  const options = [...new Set([right, ...wrong])].slice(0, 4).sort((a, b) => rank(a) - rank(b));
  return { text, stop, options, answer: options.indexOf(right) };
}

const numbers = (text: string, stop: string, right: number, wrong: number[]) =>
  choice(text, stop, String(right), wrong.filter((one) => one > 0).map(String), Number);

/** Wrong and right words in the order of the alphabet, which tells nothing. */
const words = (text: string, stop: string, right: string, wrong: string[]) =>
  choice(text, stop, right, wrong, (one) => one.codePointAt(0)!);

export async function questions(live: Live): Promise<Question[]> {
  const { trace, focus } = live;
  const { d_model } = trace.config;
  const [source, target] = [trace.words("source"), trace.words("target")];
  const path = inReader(trace, "layers.0.self_attention");
  const [weights] = await live.tensors(`${path}.probabilities`);
  const [count] = weights.shape;
  const d_k = trace.shape(`${path}.q`)[2];
  const total = headsOf(trace);
  const looks = source.map((_, key) => at(weights, 0, focus, key));
  const most = largest(looks);
  const name = (i: number) => `${word(source[i])} (token ${i + 1})`;
  const others = [...source.keys()].filter((i) => i !== most).sort((a, b) => looks[b] - looks[a]).slice(0, 3);
  const least = leastSure(trace);
  const said = labelled(target.slice(1)).map(({ label }) => label).filter((label) => label !== least.label);
  const spread = Math.max(Math.floor(said.length / 3), 1);
  return [
    numbers("Into how many tokens is your sentence cut, with the end?", "tokens", source.length, [source.length - 1, source.length + 3, target.length * 2]),
    numbers("How many heads does the whole model have?", "inside-the-box", total, [count, total * 2, count * trace.stacks[0].layers]),
    numbers("How many numbers has a query of one head?", "query-key-and-value", d_k, [d_model, count, d_k * 2]),
    numbers("How many scores does one head of the encoder compute here?", "matrices", source.length ** 2, [source.length, source.length * target.length + 1, source.length * 2]),
    words(`At which token does head 1 of the first encoder layer look most from “${live.marked}”?`, "from-scores-to-weights", name(most), others.map(name)),
    words("Of which word of its translation was the model least sure?", "result", least.label, [0, spread, 2 * spread].map((i) => said[i]).filter(Boolean)),
    {
      text: `Cross-attention: how large is the matrix of weights of one head (rows × columns)?`,
      stop: "cross-attention",
      ...sizes(target.length, source.length),
    },
  ];
}

function sizes(rows: number, columns: number): Pick<Question, "options" | "answer"> {
  const options = [...new Set([`${columns} × ${rows}`, `${rows} × ${columns}`, `${columns} × ${columns}`, `${rows} × ${rows}`])];
  return { options, answer: options.indexOf(`${rows} × ${columns}`) };
}
