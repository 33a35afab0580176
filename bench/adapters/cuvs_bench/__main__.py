"""The command line of cuvs_bench.run, which knows the backend "pgwarp" as well."""

from cuvs_bench.run.__main__ import main

from . import PgWarpBackend  # noqa: F401  registers it

main()
