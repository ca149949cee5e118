"""The routes of the service, one module for each resource."""

from sightline.serve.routes import libre, models, monitor, page, trace, training, translate

ROUTERS = [translate.router, trace.router, training.router, models.router, monitor.router, libre.router, page.router]
