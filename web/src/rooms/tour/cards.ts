/** The cards of the tour as a file for Anki: text separated by tabs. */

import { STOPS } from "./stops";

const plain = (text: string) => text.replace(/\*\*|[*`\t]/g, "");

export function cardsFile(): string {
  const rows = STOPS.flatMap(({ text }) => text.cards.map(({ question, answer }) => `${plain(question)}\t${plain(answer)}\t${text.id}`));
  return ["#separator:tab", "#html:false", "#tags column:3", ...rows, ""].join("\n");
}

/** Save the cards on the reader's computer. */
export function saveCards(): void {
  const url = URL.createObjectURL(new Blob([cardsFile()], { type: "text/tab-separated-values" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "transformer-cards.tsv";
  link.click();
  URL.revokeObjectURL(url);
}
