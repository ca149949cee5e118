"""The values of options that are names. They are not in `sightline.config`, so that the command line shows its help
without importing that module."""

from typing import Literal

BackendName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["auto", "float32", "bfloat16", "int8"]
RerankName = Literal["none", "mbr-chrf"]
