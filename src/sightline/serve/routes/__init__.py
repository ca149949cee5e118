"""The routes of the service, one module for each resource."""

from sightline.serve.routes import libre, models, monitor, page, trace, translate

ROUTERS = [translate.router, trace.router, models.router, monitor.router, libre.router, page.router]
