import os
from typing import Annotated, Unpack

import click
from pydantic import SecretStr

from vectordb_bench.backend.clients import DB

from ....cli.cli import CommonTypedDict, cli, click_parameter_decorators_from_typed_dict, run


class PgWarpTypedDict(CommonTypedDict):
    host: Annotated[str, click.option("--host", default="localhost", show_default=True, help="of the server")]
    port: Annotated[int, click.option("--port", default=5432, show_default=True, help="of the server")]
    user_name: Annotated[str, click.option("--user-name", default="postgres", show_default=True, help="to connect as")]
    password: Annotated[
        str,
        click.option(
            "--password",
            default=lambda: os.environ.get("POSTGRES_PASSWORD", ""),
            show_default="$POSTGRES_PASSWORD",
            help="of the user",
        ),
    ]
    db_name: Annotated[str, click.option("--db-name", default="postgres", show_default=True, help="to connect to")]
    target_recall: Annotated[
        float,
        click.option(
            "--target-recall",
            type=click.FloatRange(0, 1),
            default=0.95,
            show_default=True,
            help="the share of true neighbors that searches find (ivfpq.target_recall)",
        ),
    ]
    filter_by_id: Annotated[
        bool,
        click.option(
            "--filter-by-id/--no-filter-by-id",
            default=True,
            show_default=True,
            help="have the id in the index, for cases that filter by it",
        ),
    ]
    maintenance_work_mem: Annotated[
        str | None, click.option("--maintenance-work-mem", help="for the build, such as 8GB; else the server's")
    ]
    max_parallel_workers: Annotated[
        int | None, click.option("--max-parallel-workers", type=int, help="for the build; else the server's")
    ]


@cli.command(name="pgwarp")
@click_parameter_decorators_from_typed_dict(PgWarpTypedDict)
def PgWarp(**parameters: Unpack[PgWarpTypedDict]):
    from .config import PgWarpConfig, PgWarpIndexConfig

    run(
        db=DB.PgWarp,
        db_config=PgWarpConfig(
            db_label=parameters["db_label"],
            user_name=SecretStr(parameters["user_name"]),
            password=SecretStr(parameters["password"]),
            host=parameters["host"],
            port=parameters["port"],
            db_name=parameters["db_name"],
        ),
        db_case_config=PgWarpIndexConfig(
            target_recall=parameters["target_recall"],
            filter_by_id=parameters["filter_by_id"],
            maintenance_work_mem=parameters["maintenance_work_mem"],
            max_parallel_workers=parameters["max_parallel_workers"],
        ),
        **parameters,
    )
