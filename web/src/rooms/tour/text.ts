/** The text of the tour. Its source is the documentation page, so that both are the same. */

import source from "../../../../docs/explanation/tour.md?raw";

export interface Card {
  question: string;
  answer: string;
}

export interface StopText {
  /** The anchor of its heading in the documentation page. */
  id: string;
  title: string;
  question: string;
  /** Paragraphs before the prediction. */
  intro: string[];
  predict: string;
  /** The options of the prediction, if they are the same for all models. */
  options: string[];
  look: string;
  /** What to read instead if this model does not show what the stop states. */
  otherwise: string;
  do: string;
  /** What the reader has seen after that. */
  then: string;
  notes: string[];
  cards: Card[];
  remember: string;
}

const ONE = { Predict: "predict", Look: "look", Otherwise: "otherwise", Do: "do", Then: "then", Remember: "remember" } as const;
const LABELLED = /^\*(\w+)\.\* ([^]*)$/;
const CARD = /^\*\*(.+?)\*\* ([^]*)$/;

/** The anchor of a heading on GitHub. */
export const slug = (title: string) =>
  title
    .toLowerCase()
    .replace(/[^\w\- ]/g, "")
    .replaceAll(" ", "-");

const joined = (block: string) => block.replace(/\s*\n\s*/g, " ");

function parse(section: string): StopText {
  const [title, question, ...blocks] = section.trim().split(/\n{2,}/);
  const stop: StopText = {
    id: slug(title),
    title,
    question: question.slice(2, -2),
    intro: [],
    predict: "",
    options: [],
    look: "",
    otherwise: "",
    do: "",
    then: "",
    notes: [],
    cards: [],
    remember: "",
  };
  for (const block of blocks) {
    const found = LABELLED.exec(block);
    if (!found && block.startsWith("- ")) stop.options = block.split(/\n?^- /m).slice(1).map(joined);
    else if (!found) stop.intro.push(joined(block));
    else if (found[1] === "Notes") stop.notes.push(joined(found[2]));
    else if (found[1] === "Card") {
      const [, asked, answer] = CARD.exec(joined(found[2]))!;
      stop.cards.push({ question: asked, answer });
    } else stop[ONE[found[1] as keyof typeof ONE]] = joined(found[2]);
  }
  return stop;
}

const [preface, ...sections] = source.split(/^## /m);

/** The paragraph before the first stop. */
export const PREFACE = joined(preface.trim().split(/\n{2,}/)[2]);

export const TEXTS: StopText[] = sections.map(parse);
