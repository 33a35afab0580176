"""pgwarp in ann-benchmarks: an ivfpq index of PostgreSQL, with the recall to reach as the query argument.

The server is the one that libpq's environment names: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD. Where
PGWARP_START is set, as in the container, it is a command that starts the server first.
"""

import os
import subprocess

from ..base.module import BaseANN
from .pgwarp_table import METRICS, VectorTable, connect


class PGWarp(BaseANN):
    def __init__(self, metric, options=None):
        """options: those of CREATE INDEX, as in {"lists": 1000}; without them the build decides."""
        if metric not in METRICS:
            raise ValueError(f"pgwarp has no index for metric {metric!r}")
        self._metric = metric
        self._options = options or {}
        self._target = None
        self._table = None
        self._batch = []

    def fit(self, X):
        if os.environ.get("PGWARP_START"):
            subprocess.run(os.environ["PGWARP_START"], shell=True, check=True)
        self._table = VectorTable(connect(), "ann_items", X.shape[1], self._metric)
        self._table.create()
        self._table.load(X)
        self._table.build(options=self._options)

    def set_query_arguments(self, target_recall):
        self._target = target_recall
        self._table.set_target_recall(target_recall)

    def query(self, v, n):
        return self._table.search(v, n)

    def batch_query(self, X, n):
        ids, _ = self._table.search_batch(X, n)
        self._batch = [[row for row in found if row >= 0] for found in ids.tolist()]

    def get_batch_results(self):
        return self._batch

    def get_memory_usage(self):
        """The size of the index in kilobytes: the server has it, not this process."""
        return 0 if self._table is None else self._table.index_bytes() / 1024

    def done(self):
        if self._table is not None:
            self._table.connection.close()
            self._table = None

    def __str__(self):
        options = "".join(f", {name}={value}" for name, value in self._options.items())
        return f"pgwarp(target_recall={self._target}{options})"
