"""Print the OpenAPI document of the service, from which `make web` generates web/src/generated.ts."""

import json
import sys
from types import SimpleNamespace
from typing import Any, cast

from sightline.config import ModelConfig, ServeConfig
from sightline.serve.app import create_app
from sightline.serve.observe import Metrics
from sightline.serve.service import Service

MODELS = SimpleNamespace(entries={"": SimpleNamespace(task="write")})
"""The document depends on the tasks of the models only: the routes of all of them."""
PROSE = ("description", "title", "summary", "examples")


def document() -> dict[str, Any]:
    """Return the document, with the options of a model, which a trace contains."""
    service = SimpleNamespace(config=ServeConfig(), metrics=Metrics(), models=MODELS)
    found = create_app(cast("Service", service)).openapi()
    found["paths"] = {path: about for path, about in found["paths"].items() if path.startswith("/v1/")}
    config = ModelConfig.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**config.pop("$defs", {}), "ModelConfig": config}
    for schema in schemas.values():
        schema["required"] = list(schema["properties"])  # a trace has all options
    found["components"]["schemas"] |= schemas
    trace = found["components"]["schemas"]["TraceAnswer"]
    trace["properties"]["config"] = {"$ref": "#/components/schemas/ModelConfig"}
    return found


def without_prose(part: Any) -> Any:
    """Return a part of the document without texts, so that the types change only with the fields."""
    if isinstance(part, list):
        return [without_prose(element) for element in part]
    if not isinstance(part, dict):
        return part
    return {
        name: without_prose(value)
        for name, value in part.items()
        if name not in PROSE or not isinstance(value, str | list)  # a field may have such a name
    }


if __name__ == "__main__":
    json.dump(without_prose(document()), sys.stdout, indent=1, ensure_ascii=False)
