import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** Of KaTeX's fonts, every browser that runs this page takes woff2; the other formats need not be shipped. */
const onlyWoff2: Plugin = {
  name: "only-woff2",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("katex.min.css")) return;
    return code.replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\("[^"]*"\)/g, "");
  },
};

export default defineConfig({
  plugins: [onlyWoff2, svelte()],
  base: "/",
  assetsInclude: ["**/*.bin"],
  build: {
    outDir: "../src/sightline/serve/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.md" }, // of what is built in, as these licences ask
  },
  resolve: process.env.VITEST ? { conditions: ["browser"] } : undefined,
  server: { proxy: { "/v1": "http://127.0.0.1:8000", "/healthz": "http://127.0.0.1:8000" } },
});
