"""Store the attention of the bundled model `coref` on the riddle. The page shows it until a service answers.

python recipes/coref/stored.py
"""

from pathlib import Path

from sightline.data.builtin import riddle
from sightline.engine import load_translator
from sightline.trace.pack import pack_trace

FILE = Path(__file__).parents[2] / "web" / "src" / "trace" / "stored.bin"


def stored() -> bytes:
    """Return the weights of all attentions, with the description that a service sends with a trace."""
    engine = load_translator("coref", device="cpu", backend="torch")
    pair = riddle()[0]
    trace = engine.trace(pair.source, pair.target)
    names = [name for name in trace.names() if name.endswith("attention.probabilities")]
    tensors = [
        {"name": name, "axes": list(sizes), "shape": list(sizes.values())}
        for name, sizes in ((name, trace.sizes(name)) for name in names)
    ]
    config = engine.model.config.model_dump()
    about = {"id": "", "model": "coref", "target": pair.target, "config": config, "ids": trace.ids, "tensors": tensors}
    return pack_trace(trace, names, dtype="f16", about={**about, "tokens": trace.tokens})


if __name__ == "__main__":
    FILE.write_bytes(stored())
    print(f"{FILE}: {FILE.stat().st_size:,} bytes; make web puts it into the page")
