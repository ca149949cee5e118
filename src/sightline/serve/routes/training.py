"""The training run of the tour."""

from fastapi import APIRouter

from sightline.serve import schemas
from sightline.serve.problems import COMMON, responses
from sightline.serve.routes.shared import Serving
from sightline.serve.service import Service

router = APIRouter(prefix="/v1/training", tags=["training"], responses=responses(*COMMON, "forbidden"))
SENT = responses("malformed", "too-slow", "too-large", "wrong-type", "invalid")
"""Problems of a request with a body."""


@router.get("")
async def status(service: Serving) -> schemas.TrainingAnswer:
    """Report the run, its losses and its states. Before the first run, the states are those of a bundled model."""
    return _status(service)


@router.post("/start", responses=SENT)
async def start(_: schemas.TrainingRequest, service: Serving) -> schemas.TrainingAnswer:
    """Start a run of about half a minute. A run in progress continues; a finished one is replaced."""
    service.lesson.start()
    return _status(service)


@router.post("/stop", responses=SENT)
async def stop(_: schemas.TrainingRequest, service: Serving) -> schemas.TrainingAnswer:
    """Stop the run. Its states stay until the next one."""
    service.lesson.stop()
    return _status(service)


def _status(service: Service) -> schemas.TrainingAnswer:
    lesson = service.lesson
    return schemas.TrainingAnswer.model_validate(
        {
            "allowed": lesson.allowed,
            "run": lesson.run,
            "phase": lesson.phase,
            "steps": lesson.steps,
            "losses": lesson.losses,
            "states": [{"step": step, "model": f"training@{step}"} for step in lesson.states()],
        }
    )
