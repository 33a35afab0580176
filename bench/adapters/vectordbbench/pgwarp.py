"""pgwarp in VectorDBBench: an ivfpq index of PostgreSQL, whose attributes are the columns that cases filter by."""

import logging
from contextlib import contextmanager
from typing import Any

import numpy as np
from psycopg import sql

from vectordb_bench.backend.filter import Filter, FilterOp

from ..api import VectorDB
from .config import PgWarpIndexConfig
from .pgwarp_table import VectorTable, connect

log = logging.getLogger(__name__)


class PgWarp(VectorDB):
    # A connection answers one query at a time.
    thread_safe: bool = False
    supported_filter_types: list[FilterOp] = [FilterOp.NonFilter, FilterOp.NumGE, FilterOp.StrEqual]

    def __init__(
        self,
        dim: int,
        db_config: dict,
        db_case_config: PgWarpIndexConfig,
        collection_name: str | None = None,
        drop_old: bool = False,
        with_scalar_labels: bool = False,
        **kwargs: Any,
    ):
        self.name = "PgWarp"
        self.dim = dim
        self.connect_config = db_config["connect_config"]
        self.table_name = collection_name or db_config["table_name"]
        self.case_config = db_case_config
        self.with_scalar_labels = with_scalar_labels
        self.condition = ""
        # Processes get a copy of this object, before they connect.
        self.table: VectorTable | None = None
        if drop_old:
            with self.init():
                self.table.create(labels=with_scalar_labels)

    @contextmanager
    def init(self):
        connection = connect(**self.connect_config)
        try:
            self.table = VectorTable(connection, self.table_name, self.dim, self.case_config.metric())
            self.table.set_target_recall(self.case_config.search_param()["target_recall"])
            yield
        finally:
            self.table = None
            connection.close()

    def insert_embeddings(
        self,
        embeddings: list[list[float]],
        metadata: list[int],
        labels_data: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[int, Exception | None]:
        if self.with_scalar_labels and labels_data is None:
            raise ValueError("the case has labels, its rows have none")
        try:
            labels = labels_data if self.with_scalar_labels else None
            self.table.load(np.asarray(embeddings), ids=metadata, labels=labels)
        except Exception as error:
            log.warning(f"could not load rows into {self.table_name}: {error}")
            return 0, error
        return len(metadata), None

    def optimize(self, data_size: int | None = None):
        parameters = self.case_config.index_param()
        connection = self.table.connection
        for name, value in parameters["settings"].items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        attributes = parameters["attributes"] + (["label"] if self.with_scalar_labels else [])
        self.table.build(attributes=attributes)
        for name in parameters["settings"]:
            connection.execute(sql.SQL("RESET {}").format(sql.Identifier(name)))

    def prepare_filter(self, filters: Filter):
        # Called with and without a connection, so that the text is made without one.
        if filters.type == FilterOp.NonFilter:
            self.condition = ""
        elif filters.type == FilterOp.NumGE:
            self.condition = f"id >= {int(filters.int_value)}"
        elif filters.type == FilterOp.StrEqual:
            self.condition = "label = " + sql.Literal(filters.label_value).as_string(None)
        else:
            raise ValueError(f"pgwarp has no filter {filters}")

    def search_embedding(self, query: list[float], k: int = 100, **kwargs: Any) -> list[int]:
        return self.table.search(np.asarray(query), k, self.condition)
