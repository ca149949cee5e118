"""Draw what `sightline demo` prints: `python docs/images/demo.py` writes demo.svg to its folder."""

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from sightline.cli.demo import explain, translate

INK = TerminalTheme(
    (16, 20, 28),
    (222, 226, 234),
    [(16, 20, 28), (240, 113, 120), (126, 211, 150), (240, 200, 110), (110, 160, 250), (190, 140, 240), (95, 200, 220)],
)
SHEET = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
<rect fill="#10141c" x="0" y="0" width="{width}" height="{height}" rx="10"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""

if __name__ == "__main__":
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True, highlight=False)
    translate(console)
    explain(console)
    svg = console.export_svg(theme=INK, code_format=SHEET, unique_id="demo")
    (Path(__file__).parent / "demo.svg").write_text(svg)
