"""Health, readiness and metrics."""

import prometheus_client
from fastapi import APIRouter, Request, Response

from sightline import __version__
from sightline.serve.problems import COMMON, Problem, responses
from sightline.serve.routes.shared import Serving

router = APIRouter(tags=["service"])


@router.get("/healthz", responses=responses("unavailable"))
async def healthz(service: Serving) -> dict[str, str]:
    """Report whether the process works. If it does not, restart it."""
    if not service.healthy:
        raise Problem("unavailable", "A thread of the service has ended. Restart the service.")
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses=responses("stopping"))
async def readyz(request: Request) -> dict[str, str]:
    """Report whether the service accepts requests."""
    if request.app.state.stopping:
        raise Problem("stopping", "The service is shutting down.", retry=1)
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses=responses(*COMMON))
async def metrics(service: Serving) -> Response:
    """Return metrics for Prometheus."""
    service.metrics.waiting.set(service.waiting)
    for name, entry in service.models.entries.items():
        service.metrics.loaded.labels(name).set(entry.loaded)
    text = prometheus_client.generate_latest(service.metrics.registry)
    return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)
