"""The models, their weights and their vocabularies."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from sightline.engine import Engine
from sightline.serve import schemas
from sightline.serve.problems import MODEL, Problem, responses
from sightline.serve.routes.shared import Bytes, Row, Serving, row_bytes

router = APIRouter(prefix="/v1/models", tags=["models"], responses=responses(*MODEL))
Name = Annotated[str, Path(description="Name of a model.")]


@router.get("")
async def models(service: Serving) -> schemas.ModelsAnswer:
    """List the models of this service."""
    return schemas.ModelsAnswer.model_validate({"data": [*service.models.entries.values()]})


@router.get("/{model}")
async def model_about(model: Name, service: Serving) -> schemas.ModelAbout:
    """Describe a model."""
    if model not in service.models.entries:
        raise Problem("not-found", "Unknown model. See /v1/models.", param="model")
    return schemas.ModelAbout.model_validate(service.models.entries[model])


@router.get("/{model}/weights/{parameter}", response_class=Bytes)
async def weights(
    model: Name,
    parameter: Annotated[str, Path(description="Name of a parameter: decoder.layers.0.feed_forward.inner.weight.")],
    request: Request,
    service: Serving,
    row: Row = None,
) -> Bytes:
    """Return the values of one row of a weight matrix or of a whole vector, in single precision, little-endian. The
    header X-Shape is the shape of the whole parameter."""
    _, engine = await service.models.engine(model, Engine)

    def work() -> Bytes:
        whole = dict(engine.model.named_parameters(remove_duplicate=False)).get(parameter)
        if whole is None:
            raise Problem("not-found", "Unknown parameter of this model.")
        if whole.dim() > 1 and row is None:
            raise Problem("invalid", f"`row` is missing: the parameter is a matrix of {len(whole)} rows.")
        _, data = row_bytes(whole.detach(), row, "f32")
        return Bytes(data, headers={"X-Shape": ",".join(map(str, whole.shape))})

    return await service.call(request, engine, work)


@router.get("/{model}/pieces")
async def pieces(
    model: Name,
    request: Request,
    service: Serving,
    ids: Annotated[list[int], Query(description="Ids of entries.", max_length=1000)] = [],  # noqa: B006
) -> schemas.PiecesAnswer:
    """Return entries of a model's vocabulary as text."""
    _, engine = await service.models.engine(model, Engine)

    def work() -> schemas.PiecesAnswer:
        size = engine.tokenizer.size
        if not all(0 <= one < size for one in ids):
            raise Problem("not-found", f"`ids` must be less than {size}, the size of the vocabulary.")
        return schemas.PiecesAnswer(pieces=engine.tokenizer.pieces(ids))

    return await service.call(request, engine, work)
