import "katex/dist/katex.min.css";

export { render } from "katex";
