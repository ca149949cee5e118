/** Light or dark colours: the system's preference until the reader chooses. */

const KEY = "sightline-theme";

export class Theme {
  private chosen = $state<string | null>(null);
  private system = $state(false);
  readonly close: () => void;

  /** `storage`: remembers the choice. */
  constructor(private storage: Storage | null) {
    this.chosen = storage?.getItem(KEY) ?? null;
    const preference = matchMedia("(prefers-color-scheme: dark)");
    this.system = preference.matches;
    const changed = () => (this.system = preference.matches);
    preference.addEventListener("change", changed);
    this.close = () => preference.removeEventListener("change", changed);
  }

  get dark(): boolean {
    return this.chosen === null ? this.system : this.chosen === "dark";
  }

  toggle(): void {
    this.chosen = this.dark ? "light" : "dark";
    this.storage?.setItem(KEY, this.chosen);
  }
}
