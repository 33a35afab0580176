"""pgwarp in cuvs-bench: an ivfpq index of PostgreSQL, with the recall to reach as the search parameter.

Batches of queries are answered by knn_join. A batch size of 1 asks one query at a time, as an application does.
"""

import hashlib
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import cuvs_bench.config
import numpy as np
from cuvs_bench.backends._utils import compute_recall
from cuvs_bench.backends.base import BenchmarkBackend, BuildResult, SearchResult
from cuvs_bench.orchestrator.config_loaders import BenchmarkConfig, ConfigLoader, IndexConfig

from .pgwarp_table import VectorTable, connect

# What the file of --backend-config may say of the connection, as psycopg names it.
CONNECTION_KEYS = ("host", "port", "user", "password", "dbname")


def table_name(text):
    """The text as a name of PostgreSQL, which has 63 bytes, those of "_embedding_idx" among them."""
    name = re.sub(r"\W", "_", text).lower()
    if len(name.encode()) <= 48:
        return name
    return f"{name[:30]}_{hashlib.sha1(text.encode()).hexdigest()[:12]}"


class PgWarpConfigLoader(ConfigLoader):
    def __init__(self, config_path=None):
        self.config_path = config_path or os.path.dirname(cuvs_bench.config.__file__)

    @property
    def backend_type(self):
        return "pgwarp"

    def _discover_algo_groups(self, dataset_conf, dataset, dataset_path, **kwargs):
        files = [os.path.join(os.path.dirname(os.path.realpath(__file__)), "pgwarp.yaml")]
        files += self.gather_algorithm_configs(self.config_path, kwargs.get("algorithm_configuration"))
        wanted = [name.strip() for name in (kwargs.get("groups") or "base").split(",")]
        for pair in filter(None, (kwargs.get("algo_groups") or "").split(",")):
            algorithm, group = pair.strip().split(".")
            if algorithm == "pgwarp":
                wanted.append(group)
        # Groups of later files, those that the caller gave, replace ours of the same name.
        groups = {}
        for file in files:
            content = self.load_yaml_file(file)
            if isinstance(content, dict) and content.get("name") == "pgwarp":
                groups.update(content.get("groups", {}))
        missing = [name for name in wanted if name not in groups]
        if missing:
            raise ValueError(f"pgwarp has no group {', '.join(missing)}: it has {', '.join(groups)}")
        return [("pgwarp", name, groups[name], {}) for name in dict.fromkeys(wanted)]

    def _build_benchmark_configs(self, dataset_config, dataset_conf, dataset, dataset_path, expanded_groups, **kwargs):
        backend = {key: kwargs[key] for key in CONNECTION_KEYS if key in kwargs}
        configs = []
        for algorithm, group, _, builds, searches, _ in expanded_groups:
            if kwargs.get("_tune_mode") and kwargs.get("_tune_build_params") is not None:
                builds, searches = [kwargs["_tune_build_params"]], [kwargs.get("_tune_search_params") or {}]
            label = algorithm if group == "base" else f"{algorithm}_{group}"
            for build in builds:
                name = ".".join([label] + [f"{key}{value}" for key, value in build.items()])
                # Tables of other data, or of fewer rows of it, are other tables.
                table = table_name(f"{dataset}_{dataset_config.subset_size or 'all'}_{name}")
                configs.append(
                    BenchmarkConfig(
                        indexes=[IndexConfig(name, algorithm, build, searches, file=table)],
                        backend_config={
                            **backend,
                            "name": name,
                            "algo": algorithm,
                            "group": group,
                            "results": os.path.join(dataset_path, dataset, "result"),
                            "append": kwargs.get("_tune_mode", False),
                        },
                    )
                )
        return configs


def thread_counts(search_threads):
    """"4" is four; "1:4" is one, two and four. None is one."""
    first, _, last = str(search_threads or 1).partition(":")
    counts = [int(first)]
    while last and counts[-1] * 2 <= int(last):
        counts.append(counts[-1] * 2)
    return counts


class PgWarpBackend(BenchmarkBackend):
    def __init__(self, config):
        super().__init__(config)
        self._connections = []

    @property
    def algo(self):
        return self.config.get("algo", "pgwarp")

    def _connect(self):
        connection = connect(**{key: self.config[key] for key in CONNECTION_KEYS if key in self.config})
        self._connections.append(connection)
        return connection

    def _table(self, dataset, index):
        # Queries tell the dimensions without reading the rows.
        dims = dataset.query_vectors.shape[1]
        return VectorTable(self._connect(), index.file, dims, dataset.distance_metric)

    def cleanup(self):
        for connection in self._connections:
            connection.close()
        self._connections = []

    def _write(self, kind, name, rows):
        """Adds to a file of results in the form of Google Benchmark, which cuvs-bench exports and draws."""
        folder = os.path.join(self.config["results"], kind)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name + ".json")
        names = {row["name"] for row in rows}
        kept = []
        if os.path.exists(path):
            with open(path) as file:
                kept = json.load(file)["benchmarks"]
        # Figures of the same index are of an earlier run, except in tune mode, where each call has one point.
        if not self.config.get("append"):
            kept = [row for row in kept if row["name"] not in names]
        with open(path, "w") as file:
            json.dump({"benchmarks": kept + rows}, file, indent=1)

    def build(self, dataset, indexes, force=False, dry_run=False):
        index = indexes[0]
        result = BuildResult(
            index_path=index.file,
            build_time_seconds=0.0,
            index_size_bytes=0,
            algorithm=self.algo,
            build_params=index.build_param,
        )
        if dry_run:
            print(f"would build {index.name} of {dataset.name} with {index.build_param or 'default options'}")
            return result
        table = self._table(dataset, index)
        if table.exists() and not force:
            result.index_size_bytes = table.index_bytes()
            result.metadata["skipped"] = "the index is there"
            return result
        begin = time.perf_counter()
        table.create()
        table.load(dataset.training_vectors)
        loaded = time.perf_counter()
        table.build(options=index.build_param)
        result.build_time_seconds = time.perf_counter() - loaded
        result.index_size_bytes = table.index_bytes()
        result.metadata["load_time_seconds"] = loaded - begin
        row = {
            "name": index.name,
            "real_time": result.build_time_seconds,
            "time_unit": "s",
            "index_size": result.index_size_bytes,
            # Columns that the export expects; the server's processor time is not known here.
            "threads": None,
            "cpu_time": None,
            "load_time": loaded - begin,
            **index.build_param,
        }
        self._write("build", f"{self.algo},{self.config['group']}", [row])
        return result

    def search(
        self,
        dataset,
        indexes,
        k,
        batch_size=10000,
        mode="latency",
        force=False,
        search_threads=None,
        dry_run=False,
    ):
        index = indexes[0]
        parameters = index.search_params or [{}]
        if dry_run:
            print(f"would search {index.name} of {dataset.name} with {parameters}, k={k}, batches of {batch_size}")
            return self._result(np.empty((0, k), dtype=np.int64), np.empty((0, k), dtype=np.float32), [{}], parameters)
        unknown = {key for one in parameters for key in one} - {"target_recall"}
        if unknown:
            raise ValueError(f"unknown search parameters: {', '.join(sorted(unknown))}; there is target_recall")
        # Threads are for throughput; latency is that of one client.
        counts = thread_counts(search_threads) if mode == "throughput" else [1]
        tables = [self._table(dataset, index) for _ in range(max(counts))]
        points = []
        for one in parameters:
            for table in tables:
                table.set_target_recall(one.get("target_recall", 0.95))
            for threads in counts:
                ids, distances, point = self._measure(tables[:threads], dataset.query_vectors, k, batch_size)
                if dataset.groundtruth_neighbors is not None:
                    point["Recall"] = compute_recall(ids, dataset.groundtruth_neighbors, k)
                points.append({"name": index.name, "k": k, "n_queries": batch_size, "threads": threads, **one, **point})
        name = f"{self.algo},{self.config['group']},k{k},bs{batch_size}"
        self._write("search", name, points)
        return self._result(ids, distances, points, parameters)

    def _measure(self, tables, queries, k, batch_size):
        """Answers all queries once, and before that as many as a batch has, so that pages and plans are there."""
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        distances = np.full((len(queries), k), np.nan, dtype=np.float32)
        firsts = range(0, len(queries), batch_size)
        latencies = []

        def answer(table, first):
            begin = time.perf_counter()
            if batch_size == 1:
                found = table.search(queries[first], k)
                ids[first, : len(found)] = found
            else:
                part = slice(first, first + batch_size)
                ids[part], distances[part] = table.search_batch(queries[part], k)
            latencies.append(time.perf_counter() - begin)

        def client(number):
            for first in firsts[number :: len(tables)]:
                answer(tables[number], first)

        for table in tables:
            answer(table, 0)
        latencies.clear()
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(tables)) as pool:
            list(pool.map(client, range(len(tables))))
        seconds = time.perf_counter() - begin
        point = {
            "real_time": seconds,
            "time_unit": "s",
            "Latency": float(np.mean(latencies)),
            "p50": float(np.percentile(latencies, 50)),
            "p95": float(np.percentile(latencies, 95)),
            "p99": float(np.percentile(latencies, 99)),
            "items_per_second": len(queries) / seconds,
        }
        return ids, distances, point

    def _result(self, ids, distances, points, parameters):
        """The figures of the last point, whose neighbors these are; metadata has those of all points."""
        last = points[-1]
        return SearchResult(
            neighbors=ids,
            distances=distances,
            search_time_ms=last.get("real_time", 0.0) * 1000,
            queries_per_second=last.get("items_per_second", 0.0),
            recall=last.get("Recall", 0.0),
            algorithm=self.algo,
            search_params=parameters,
            latency_percentiles={key: last[key] * 1000 for key in ("p50", "p95", "p99") if key in last},
            metadata={"points": points},
        )
