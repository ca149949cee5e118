"""Every test runs with the shapes in the signatures of model, trace and loss checked at each call."""

import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook(["sightline.model", "sightline.trace", "sightline.train.loss"], "beartype.beartype")

settings.register_profile("sightline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("sightline")
torch.set_num_threads(1)  # tests run side by side
