"""Store the attention of the bundled model `coref` on the riddle. The page shows it until a service answers.

python recipes/coref/stored.py
"""

from pathlib import Path

from sightline.data.builtin import riddle
from sightline.engine import load_translator
from sightline.trace.pack import pack_trace

FILE = Path(__file__).parents[2] / "web" / "src" / "trace" / "stored.bin"


def stored() -> bytes:
    """Return the weights of all attentions."""
    engine = load_translator("coref", device="cpu", backend="torch")
    pair = riddle()[0]
    trace = engine.trace(pair.source, pair.target)
    trace.model = "coref"
    return pack_trace(trace, [name for name in trace.names() if name.endswith("attention.probabilities")], dtype="f16")


if __name__ == "__main__":
    FILE.write_bytes(stored())
    print(f"{FILE}: {FILE.stat().st_size:,} bytes; make web puts it into the page")
