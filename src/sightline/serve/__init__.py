"""The HTTP service: models, routes and limits."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.serve.app import create_app
    from sightline.serve.models import Models
    from sightline.serve.service import Service

__all__ = ["Models", "Service", "create_app"]
__getattr__, __dir__ = lazy_exports(__name__)
