"""The adapters of bench/adapters, each put into a stand-in of its benchmark by bench/adapters/install, and run
against the server that libpq's environment names. test/t/085_adapters.pl calls this once for each part:

    adapters_test.py PART FOLDER [CHECKOUT]

FOLDER is an empty one. CHECKOUT is the benchmark's own sources, to be taken instead of the stand-in. Exits with 3 and
says why where a package is missing.
"""

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
root = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    import numpy as np
    import psycopg  # noqa: F401
except ImportError as missing:
    print(missing)
    sys.exit(3)
import stand_ins

part, folder = sys.argv[1], Path(sys.argv[2])
checkout = sys.argv[3] if len(sys.argv) > 3 else None
seed = int(os.environ.get("PGWARP_TEST_SEED", "1"))
print(f"seed {seed}")
rng = np.random.default_rng(seed)

ROWS, DIMS, QUERIES, K = 3000, 16, 100, 10
centers = rng.normal(size=(60, DIMS))
both = centers[rng.integers(0, len(centers), ROWS + QUERIES)] + rng.normal(size=(ROWS + QUERIES, DIMS)) * 0.5
rows, queries = both[:ROWS].astype(np.float32), both[ROWS:].astype(np.float32)


def distances_of(metric, some=rows):
    """(query)(row), in float64; smaller is nearer."""
    a, b = queries.astype(np.float64), some.astype(np.float64)
    if metric == "ip":
        return -a @ b.T
    if metric == "cosine":
        a, b = (x / np.linalg.norm(x, axis=1)[:, None] for x in (a, b))
        return 1 - a @ b.T
    return np.sqrt(np.maximum(0, (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T))


def recall_of(found, metric, passing=None):
    """Of lists of ids; a row as near as the k-th true one is no miss. Rows twice, or that do not pass, are errors."""
    distances = distances_of(metric)
    if passing is not None:
        distances[:, ~passing] = np.inf
    hits = 0
    for ids, row in zip(found, distances):
        assert len(ids) == len(set(ids)) == K, f"{len(ids)} rows, {len(set(ids))} of them distinct"
        assert np.isfinite(row[ids]).all(), "a row that does not pass"
        assert (np.diff(row[ids]) > -1e-5).all(), "rows are not in order"
        last = np.sort(row)[K - 1]
        hits += (row[ids] <= last + 1e-6 * (1 + abs(last))).sum()
    return hits / (K * len(found))


def install(name, files):
    if checkout:
        shutil.copytree(checkout, folder, symlinks=True, dirs_exist_ok=True)
    else:
        stand_ins.write(files, folder)
    command = [sys.executable, root / "bench/adapters/install", name, folder]
    for _ in range(2):  # a second call changes nothing
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(folder))


def raises(kind, words, action):
    try:
        action()
    except kind as error:
        assert words in str(error), f"{error!r} lacks {words!r}"
    else:
        raise AssertionError(f"no {kind.__name__} with {words!r}")


def info(table):
    return table.connection.execute(
        "SELECT lists, attributes, metric FROM ivfpq_info(quote_ident(%s)::regclass)", (table.index_name,)
    ).fetchone()


def test_table():
    sys.path.insert(0, str(root / "bench/adapters"))
    from pgwarp_table import VectorTable, connect

    connection = connect()
    table = VectorTable(connection, "Odd name", DIMS, "l2")
    connection.execute('DROP TABLE IF EXISTS "Odd name"')  # of an earlier run of this test
    assert not table.exists()
    table.create()
    table.load(rows[:2000])
    table.load(rows[2000:], ids=range(2000, ROWS))
    stored = connection.execute('SELECT id, embedding::real[] FROM "Odd name" ORDER BY id').fetchall()
    assert [row[0] for row in stored] == list(range(ROWS))
    assert (np.array([row[1] for row in stored], dtype=np.float32) == rows).all(), "vectors are stored otherwise"
    table.build()
    assert table.exists() and table.index_bytes() > 0 and info(table)[2] == "l2"
    same = connection.execute('SELECT id FROM "Odd name" WHERE embedding = %s', (rows[17],)).fetchall()
    assert same == [(17,)], "a vector as a parameter is another"

    # Exact with a target of 1, by both ways.
    table.set_target_recall(1)
    exact = np.argsort(distances_of("l2"), axis=1)[:, :K]
    assert recall_of([table.search(query, K) for query in queries], "l2") == 1
    ids, distances = table.search_batch(queries, K)
    assert recall_of(ids.tolist(), "l2") == 1
    assert np.allclose(distances, np.take_along_axis(distances_of("l2"), exact, 1), rtol=1e-4, atol=1e-4)
    # A second batch leaves nothing of the first. A target below 1 uses the lists.
    table.set_target_recall(0.9)
    ids, _ = table.search_batch(queries[:7], K)
    assert ids.shape == (7, K) and (ids >= 0).all()
    plan = connection.execute("EXPLAIN " + table._search_statement(K, ""), (rows[0],)).fetchall()
    assert any("Index Scan using" in line[0] for line in plan), plan

    # Fewer rows than asked for, and labels that need quoting.
    few = VectorTable(connection, "few", DIMS, "cosine")
    few.create(labels=True)
    labels = ["it's", "100%", "größer"]
    few.load(rows[:3], ids=[5, 6, 7], labels=labels)
    few.build(attributes=["id", "label"])
    assert connection.execute("SELECT label FROM few ORDER BY id").fetchall() == [(label,) for label in labels]
    ids, distances = few.search_batch(queries[:2], 4)
    assert sorted(ids[0, :3].tolist()) == [5, 6, 7] and ids[0, 3] == -1 and np.isinf(distances[0, 3])
    assert few.search(queries[0], 4, "label = '100%'") == [6]
    assert sorted(few.search(queries[0], 4, "id >= 6")) == [6, 7]
    raises(ValueError, "hamming", lambda: VectorTable(connection, "few", DIMS, "hamming"))


def test_ann_benchmarks():
    install("ann-benchmarks", stand_ins.ANN_BENCHMARKS)
    import yaml

    config = yaml.safe_load((folder / "ann_benchmarks/algorithms/pgwarp/config.yml").read_text())
    for metric, name in (("euclidean", "l2"), ("angular", "cosine")):
        (definition,) = config["float"][metric]
        module = importlib.import_module(definition["module"] + ".module")
        algorithm = getattr(module, definition["constructor"])(metric, {})
        assert algorithm.get_memory_usage() == 0
        algorithm.fit(rows)
        assert algorithm.get_memory_usage() > 100
        (targets,) = definition["run_groups"]["default"]["query_args"]
        assert targets == sorted(targets)
        for target in (0.9, 0.99):
            assert target in targets
            algorithm.set_query_arguments(target)
            assert str(algorithm) == f"pgwarp(target_recall={target})"
            single = recall_of([algorithm.query(query, K) for query in queries], name)
            algorithm.batch_query(queries, K)
            batch = recall_of(algorithm.get_batch_results(), name)
            print(f"{metric}, target {target}: recall {single:.4f}, in a batch {batch:.4f}")
            assert min(single, batch) >= target - 0.03
        algorithm.done()
    algorithm = module.PGWarp("euclidean", {"lists": 33})
    algorithm.fit(rows)
    assert info(algorithm._table)[0] == 33
    algorithm.done()
    raises(ValueError, "hamming", lambda: module.PGWarp("hamming"))


def test_vectordbbench():
    install("vectordbbench", stand_ins.VECTORDBBENCH)
    clients = importlib.import_module("vectordb_bench.backend.clients")
    api = importlib.import_module("vectordb_bench.backend.clients.api")
    filters = importlib.import_module("vectordb_bench.backend.filter")
    client_class, config_class = clients.DB.PgWarp.init_cls, clients.DB.PgWarp.config_cls
    case_class = clients.DB.PgWarp.case_config_cls(api.IndexType.IVFPQ)
    config = config_class(
        host=os.environ["PGHOST"], port=int(os.environ["PGPORT"]), user_name=os.environ["PGUSER"], db_name="postgres"
    )
    labels = [f"label_{number % 20}p" for number in range(ROWS)]
    numbers = np.arange(ROWS)

    for metric, name in (("COSINE", "cosine"), ("IP", "ip")):
        labelled = metric == "COSINE"
        case = case_class(metric_type=api.MetricType[metric], target_recall=0.98, maintenance_work_mem="32MB")
        client = client_class(DIMS, config.to_dict(), case, drop_old=True, with_scalar_labels=labelled)
        with client.init():

            def insert(first):
                ids = list(range(first, min(first + 130, ROWS)))
                done = client.insert_embeddings(rows[ids].tolist(), ids, labels_data=labels[first : first + 130])
                assert done == (len(ids), None), done

            # As cases with a rate of inserts do, from several threads on one connection.
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(insert, range(0, ROWS, 130)))
            # What the server refuses is returned, not lost.
            count, error = client.insert_embeddings([[1.0, 2.0]], [1], labels_data=["x"])
            assert count == 0 and "expected 16 dimensions" in str(error), error
            client.optimize(ROWS)
            assert info(client.table)[1] == (["id", "label"] if labelled else ["id"])
            assert client.table.connection.execute("SHOW maintenance_work_mem").fetchone() != ("32MB",)
        # Processes that search get a copy, and connect by themselves.
        client = pickle.loads(pickle.dumps(client))
        cases = [
            (types.SimpleNamespace(type=filters.FilterOp.NonFilter), numbers >= 0),
            (types.SimpleNamespace(type=filters.FilterOp.NumGE, int_value=int(ROWS * 0.9)), numbers >= ROWS * 0.9),
        ]
        if labelled:
            label = types.SimpleNamespace(type=filters.FilterOp.StrEqual, label_value="label_7p")
            cases.append((label, numbers % 20 == 7))
        for condition, passing in cases:
            client.prepare_filter(condition)
            with client.init():
                shown = client.table.connection.execute("SHOW ivfpq.target_recall").fetchone()
                assert shown == ("0.98",), shown
                recall = recall_of([client.search_embedding(query.tolist(), K) for query in queries], name, passing)
            print(f"{metric}, {condition.type}: recall {recall:.4f}")
            assert recall >= 0.95
    # Without drop_old, rows and index stay.
    again = client_class(DIMS, config.to_dict(), case)
    with again.init():
        assert len(again.search_embedding(queries[0].tolist(), 3)) == 3
    bad = case_class(metric_type=api.MetricType.HAMMING)
    raises(ValueError, "HAMMING", lambda: client_class(DIMS, config.to_dict(), bad, drop_old=True))

    if checkout:
        return
    from click.testing import CliRunner

    commands = importlib.import_module("vectordb_bench.cli.vectordbbench")
    arguments = ["pgwarp", "--host", "/tmp", "--target-recall", "0.9", "--no-filter-by-id", "--password", ""]
    outcome = CliRunner().invoke(commands.cli, arguments)
    assert outcome.exit_code == 0, repr(outcome.exception) + outcome.output
    ((database, given, asked, _),) = importlib.import_module("vectordb_bench.cli.cli").called
    assert database == clients.DB.PgWarp and given.to_dict()["connect_config"]["host"] == "/tmp"
    assert asked.target_recall == 0.9 and not asked.filter_by_id


def test_cuvs_bench():
    install("cuvs-bench", stand_ins.CUVS_BENCH)
    import pgwarp_cuvs_bench  # noqa: F401
    from cuvs_bench.backends.registry import get_backend_class, get_config_loader
    from pgwarp_cuvs_bench.backend import table_name, thread_counts

    assert thread_counts(None) == [1] and thread_counts("3") == [3] and thread_counts("1:5") == [1, 2, 4]
    long = [table_name("a" * 60 + end) for end in ("x", "y")]
    assert long[0] != long[1] and max(map(len, long)) <= 48 and table_name("A-b.c") == "a_b_c"

    mine = folder / "mine.yaml"
    mine.write_text("name: pgwarp\ngroups: {lists: {build: {lists: [20, 30]}, search: {target_recall: [0.9, 0.99]}}}\n")
    data = folder / "data"
    loader, backend_class = get_config_loader("pgwarp")(), get_backend_class("pgwarp")
    dataset_file = folder / "datasets.yaml"
    dataset_file.write_text("- {name: clusters, distance: euclidean, dims: 16}\n")
    common = {"algorithm_configuration": str(mine), "dataset_configuration": str(dataset_file), "dbname": "postgres"}
    raises(ValueError, "no group none", lambda: loader.load("clusters", str(data), groups="none", **common))
    _, configs = loader.load("clusters", str(data), groups="lists", **common)
    assert [config.indexes[0].build_param for config in configs] == [{"lists": 20}, {"lists": 30}]
    _, defaults = loader.load("clusters", str(data), **common)
    assert defaults[0].indexes[0].build_param == {} and {"target_recall": 0.95} in defaults[0].indexes[0].search_params

    exact = np.argsort(distances_of("l2"), axis=1)[:, :K]
    dataset = types.SimpleNamespace(
        name="clusters",
        training_vectors=rows,
        query_vectors=queries,
        groundtruth_neighbors=exact,
        distance_metric="euclidean",
    )
    for config in configs:
        index = config.indexes[0]
        backend = backend_class(config.backend_config)
        try:
            table = backend._table(dataset, index)
            table.connection.execute(f"DROP TABLE IF EXISTS {index.file}")  # of an earlier run of this test
            built = backend.build(dataset, config.indexes)
            assert built.success and built.build_time_seconds > 0 and built.index_size_bytes > 0
            again = backend.build(dataset, config.indexes)
            assert again.metadata["skipped"] and again.index_size_bytes == built.index_size_bytes
            if config is configs[0]:
                assert backend.build(dataset, config.indexes, force=True).build_time_seconds > 0
            assert info(table)[0] == index.build_param["lists"]
            for size, mode, threads in ((1, "latency", None), (30, "throughput", "1:2")):
                found = backend.search(dataset, config.indexes, K, size, mode, search_threads=threads)
                points = found.metadata["points"]
                assert [point["threads"] for point in points] == ([1, 1] if size == 1 else [1, 2, 1, 2])
                assert recall_of(found.neighbors.tolist(), "l2") >= 0.96
                for point in points:
                    print(f"{index.name}, batches of {size}: target {point['target_recall']}, {point['Recall']:.4f}")
                    assert point["Recall"] >= point["target_recall"] - 0.03 and point["items_per_second"] > 0
                assert np.isfinite(found.distances).all() == (size > 1)
        finally:
            backend.cleanup()
    results = json.loads((data / "clusters/result/search/pgwarp,lists,k10,bs30.json").read_text())["benchmarks"]
    assert [(point["name"], point["target_recall"], point["threads"]) for point in results] == [
        (f"pgwarp_lists.lists{lists}", target, threads)
        for lists in (20, 30)
        for target in (0.9, 0.99)
        for threads in (1, 2)
    ]
    built = json.loads((data / "clusters/result/build/pgwarp,lists.json").read_text())["benchmarks"]
    assert [row["name"] for row in built] == ["pgwarp_lists.lists20", "pgwarp_lists.lists30"]

    index.search_params = [{"probes": 1}]
    raises(ValueError, "probes", lambda: backend_class(config.backend_config).search(dataset, [index], K))


try:
    globals()["test_" + part.replace("-", "_")]()
except ImportError as missing:
    if missing.name and missing.name.split(".")[0] in ("yaml", "pydantic", "click"):
        print(missing)
        sys.exit(3)
    raise
print("done")
