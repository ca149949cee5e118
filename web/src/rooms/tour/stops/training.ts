/** The stop about training: the states of a run, live or stored. */

import type { components } from "../../../generated";
import type { Api } from "../../../shared/api";
import { effective } from "../../../app/search";
import { FIRST, searchOf } from "../../../app/view.svelte";
import type { Stop } from "../stop";

export type TrainingStatus = components["schemas"]["TrainingAnswer"];

/** The riddle, and its translations by a model that has learned it. */
export const RIDDLE: [source: string, target: string][] = [
  ["The animal didn't cross the street because it was too tired.", "Das Tier überquerte die Straße nicht, weil es zu müde war."],
  ["The animal didn't cross the street because it was too wide.", "Das Tier überquerte die Straße nicht, weil sie zu breit war."],
];

export const translated = async (api: Api, model: string, text: string) =>
  (await api.translate(model, text, effective(searchOf(FIRST)))).text;

/** A text in one or two lines: noise can be long. */
const short = (text: string) => (text.length > 70 ? `${text.slice(0, 69)}…` : text || "(nothing)");

export const training: Stop = {
  id: "training",
  task: "translate",
  room: "glass",
  prediction: { kind: "choose" },
  async reveal({ app }) {
    const { connection, api } = app;
    const status: TrainingStatus = await connection.read(connection.send("/v1/training"), (answer) => answer.json());
    const found = await Promise.all(
      status.states.map(async ({ step, model }) => {
        const texts = await Promise.all(RIDDLE.map(([source]) => translated(api, model, source)));
        return { step, text: texts[0], right: texts.every((text, i) => text === RIDDLE[i][1]) };
      }),
    );
    const first = found.findIndex((_, i) => found.slice(i).every(({ right }) => right));
    const step = found[first]?.step ?? -1;
    return {
      facts: [
        ...found.map(({ step, text, right }) => ({ key: `state-${step}`, label: `After ${step} steps${right ? ", both sentences right" : ""}`, value: short(text) })),
        ...(step < 0 ? [] : [{ key: "step", label: "Both sentences of the riddle are right from step", value: step }]),
      ],
      // The options are 40, 160 and 10,000; 80 is twice the first and half of the second.
      answer: step < 80 ? 0 : 1,
      holds: step >= 0,
    };
  },
  done: () => false,
};
