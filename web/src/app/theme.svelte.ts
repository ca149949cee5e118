/** Light or dark: as the system says, until the reader says otherwise. */

const KEY = "sightline-theme";

class Theme {
  private own = $state<string | null>(typeof localStorage === "undefined" ? null : localStorage.getItem(KEY));
  private system = $state(false);

  constructor() {
    if (typeof matchMedia === "undefined") return;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    this.system = dark.matches;
    dark.addEventListener("change", () => (this.system = dark.matches));
  }

  get dark(): boolean {
    return this.own === null ? this.system : this.own === "dark";
  }

  turn(): void {
    this.own = this.dark ? "light" : "dark";
    localStorage.setItem(KEY, this.own);
  }
}

export const theme = new Theme();
