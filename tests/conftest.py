"""Every test runs with the shapes in the signatures of model, search, trace and loss checked at each call."""

import os

import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

CHECKED = ["sightline.model", "sightline.search", "sightline.trace", "sightline.train.loss"]
install_import_hook(CHECKED, "beartype.beartype")

settings.register_profile("sightline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("sightline")
torch.set_num_threads(1)  # tests run side by side,
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so do the commands they start
