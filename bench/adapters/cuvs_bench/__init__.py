"""Importing this registers the backend "pgwarp" with cuvs-bench."""

from cuvs_bench.backends.registry import get_registry, register_config_loader

from .backend import PgWarpBackend, PgWarpConfigLoader

if not get_registry().is_registered("pgwarp"):
    get_registry().register("pgwarp", PgWarpBackend)
    register_config_loader("pgwarp", PgWarpConfigLoader)
