# How long builds, joins and clusterings take on the GPU, beside the CPU and pgvector: a script for
# the step `queries` of run. DATA has NAME_base.bvecs, which grows to ROWS rows (1000000), and is
# taken ten times, cut to 96 dimensions and moved a little, for the large table.
#   PARTS="cpu index quantizers join kmeans graph large prewarm peer"
#                           what to measure; `cpu` is builds and joins on the CPU, `prewarm` is of an
#                           index of 4 GB over the large table, for which SHARED_BUFFERS=12GB of run
#                           are needed, `peer` is pgvector, where it was packed
#   QUERIES_JOINED=100000   queries of the join
#   RECALL_ROWS=1000        rows that an index is asked for to tell its recall; 0: none are
# shellcheck shell=bash
set -euo pipefail
rows=${ROWS:-1000000}
joined=${QUERIES_JOINED:-100000}
asked=${RECALL_ROWS:-1000}
parts=" ${PARTS:-cpu index quantizers join kmeans graph large peer} "
wants() {
    [[ $parts == *" $1 "* ]]
}
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"

ask() {
    psql -X -v ON_ERROR_STOP=1 -q "$@" 2>&1
}
# Milliseconds of the statement, the last one, in the best of some rounds.
timed() {
    local rounds=$1 round
    shift
    for ((round = 0; round < rounds; ++round)); do
        ask -c '\timing on' "$@" | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' | tail -n 1
    done | sort -n | head -n 1
}
# What the processes of the server hold for themselves, at its highest, while a command runs.
with_memory() {
    local most=0 now
    "$@" &
    local command=$!
    while kill -0 $command 2>/dev/null; do
        now=$(for pid in $(pgrep -u "$(id -un)" postgres); do
            sed -n 's/^RssAnon:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null
        done | sort -n | tail -n 1) || true
        if ((${now:-0} > most)); then most=$now; fi
        sleep 0.2
    done
    wait $command
    echo "largest process: $((most / 1024)) MB of its own"
}

make_rows "$rows" 128
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' \
    -c 'CREATE TABLE items (id int, v vector(128)) WITH (parallel_workers = 15)' >/dev/null
load_rows items
ask -c 'VACUUM ANALYZE items' -c 'SELECT sum(vector_norm(v)) FROM items' -c 'CHECKPOINT' >/dev/null

build() {
    ask -c "SET maintenance_work_mem = '${MEMORY:-2GB}'" -c 'DROP INDEX IF EXISTS items_v' \
        -c 'SET client_min_messages = debug1' -c "SET pgwarp.build_executor = '$1'" -c '\timing on' \
        -c 'CREATE INDEX items_v ON items USING ivfpq (v)' | grep -E -A1 '^Time|rows in|blocks of|begin the curve|of the curve to' | grep -v '^--'
    if ((${2:-1000} > 0)); then ask -At -c "SELECT 'recall@10: ' || ivfpq_recall('items_v', ${2:-1000}, 10)"; fi
}
# What ivfpq_recall() would say of about 1000 sampled rows, in less time: the device compares them
# with all. By executors, with an effort; the row itself takes a candidate.
choose_asked_rows() {
    ask -c 'DROP TABLE IF EXISTS asked, truth' \
        -c "CREATE TABLE asked AS SELECT id, v FROM items WHERE id % ($1 / 1000 + 1) = 7" -c "SET maintenance_work_mem = '2GB'" \
        -c "SET pgwarp.build_executor = 'gpu'" -c "CREATE TABLE truth AS SELECT query_key AS id, max(distance) AS far
            FROM knn_join('asked', 'id', 'v', 'items_v', 'id', 11) GROUP BY 1" | grep -v ' does not exist, skipping' || true
}
recall_of_asked() {
    local executor probes=$1 candidates=$2
    shift 2
    for executor in "$@"; do
        ask -At -c "SET ivfpq.executor = '$executor'" -c 'SET enable_seqscan = off' \
            -c "SET ivfpq.probes = $probes" -c "SET ivfpq.candidates = $((candidates + 1))" -c "
            SELECT 'recall@10, $probes probes, $candidates candidates, executor $executor: ' || round(avg(hits) / 10, 4) ||
                ' of ' || count(*) || ' rows, give or take ' || round((stddev(hits) / 10 / sqrt(count(*)))::numeric, 4)
            FROM (SELECT asked.id, count(*) FILTER (WHERE found.d <= far * 1.000001 AND found.id <> asked.id) AS hits
                FROM asked JOIN truth USING (id) CROSS JOIN LATERAL (SELECT items.id, items.v <-> asked.v AS d FROM items
                    ORDER BY items.v <-> asked.v LIMIT 11) AS found GROUP BY asked.id) AS s"
    done
}
scan="SET max_parallel_workers_per_gather = 15; SELECT sum(vector_norm(v)) FROM items"
if wants index; then
    echo "== CREATE INDEX, $rows x 128"
    # Both builds at the same efforts: what the curve chooses differs by chance.
    efforts=('2 20' '4 20' '8 40' '16 80')
    if wants cpu; then
        build cpu "$asked"
        choose_asked_rows "$rows"
        # shellcheck disable=SC2086 # two numbers
        for effort in "${efforts[@]}"; do recall_of_asked $effort cpu; done
    fi
    for executor in gpu gpu; do build $executor "$asked"; done
    if wants cpu; then
        # shellcheck disable=SC2086 # two numbers
        for effort in "${efforts[@]}"; do recall_of_asked $effort cpu; done
    fi
    echo "sum(vector_norm(v)): $(timed 3 -c "$scan") ms"
fi

if wants quantizers; then
    for options in 'quantizer = pq, m = 8' 'quantizer = opq, m = 8' 'quantizer = lsq, m = 8' 'bits = 4' 'quantizer = opq, bits = 4'; do
        echo "== CREATE INDEX ... WITH ($options), on the GPU"
        ask -c "SET maintenance_work_mem = '${MEMORY:-2GB}'" -c 'SET client_min_messages = debug1' \
            -c "SET pgwarp.build_executor = 'gpu'" -c "CREATE INDEX items_q ON items USING ivfpq (v) WITH ($options)" |
            grep -E -A1 'rows in' || true
        # The ten best by their codes alone, and with rows ranked.
        ask -At -c "SELECT 'error: ' || quantization_error FROM ivfpq_info('items_q')" \
            -c 'SET ivfpq.candidates = 10' -c 'SET ivfpq.probes = 40' \
            -c "SELECT 'recall@10 by codes: ' || ivfpq_recall('items_q', 1000, 10)" -c 'RESET ivfpq.candidates' -c 'RESET ivfpq.probes' \
            -c "SELECT 'recall@10: ' || ivfpq_recall('items_q', 1000, 10)" -c 'DROP INDEX items_q'
    done
fi

# One session, so that the second call finds the device open; times, and what they went into.
in_session() {
    ask -At -c "SET maintenance_work_mem = '${MEMORY:-2GB}'" -c "SET work_mem = '256MB'" \
        -c 'SET max_parallel_maintenance_workers = 15' -c 'SET max_parallel_workers_per_gather = 15' \
        -c 'SET client_min_messages = debug1' -c '\timing on' "$@" |
        grep -E '^(Time|DEBUG|DETAIL|WARNING|[0-9])'
}
if wants join; then
    if ! wants index; then build gpu; fi
    # Near rows of the table, but none of them.
    ask -c 'DROP TABLE IF EXISTS queries' -c "CREATE TABLE queries AS
        WITH noise AS MATERIALIZED (SELECT n, array_agg((random() * 16 - 8)::real)::vector AS v
            FROM generate_series(0, 999) AS n, generate_series(1, 128 + 0 * n) AS d GROUP BY n)
        SELECT id, (items.v + noise.v)::vector(128) AS v FROM items JOIN noise ON n = id % 1000
        WHERE id % ($rows / $joined) = 0" -c 'VACUUM ANALYZE queries' >/dev/null
    join="SELECT count(*), sum(key) FROM knn_join('queries', 'id', 'v', 'items_v', 'id', 10)"
    echo "== knn_join, $joined queries, k = 10, on the GPU, in one session"
    in_session -c "SET pgwarp.build_executor = 'gpu'" -c "$join" -c "$join" -c "$join"
    echo "the same with a device of its own: $(timed 1 -c "SET maintenance_work_mem = '2GB'" -c "SET work_mem = '256MB'" \
        -c 'SET max_parallel_workers_per_gather = 15' -c "$join") ms"
    # 64 queries: the share of rows that are no farther than the tenth by a scan of the table
    ask -At -c 'SET max_parallel_workers_per_gather = 15' -c "SET maintenance_work_mem = '2GB'" \
        -c "SET pgwarp.build_executor = 'gpu'" -c 'SET enable_indexscan = off' -c "
        SELECT 'recall@10: ' || avg((j.distance <= e.far * 1.000001)::int)
        FROM (SELECT * FROM queries ORDER BY id LIMIT 64) AS q
            CROSS JOIN LATERAL (SELECT max(d) AS far FROM (SELECT items.v <-> q.v AS d FROM items
                ORDER BY items.v <-> q.v LIMIT 10) AS n) AS e
            JOIN knn_join('queries', 'id', 'v', 'items_v', 'id', 10) AS j ON j.query_key = q.id"
    # For others to be asked, with how far the tenth neighbor is
    ask -c "SET maintenance_work_mem = '2GB'" -c "SET pgwarp.build_executor = 'gpu'" -c 'DROP TABLE IF EXISTS few' \
        -c "CREATE TABLE few AS SELECT q.*, far FROM (SELECT * FROM queries ORDER BY id LIMIT 500) AS q
            JOIN (SELECT query_key, max(distance) AS far FROM knn_join('queries', 'id', 'v', 'items_v', 'id', 10) GROUP BY 1) AS e
                ON query_key = q.id" >/dev/null
    if wants cpu; then echo "by the CPU: $(timed 1 -c "SET pgwarp.build_executor = 'cpu'" -c "SET maintenance_work_mem = '2GB'" \
        -c 'SET max_parallel_workers_per_gather = 15' -c "SELECT count(*) FROM knn_join('queries', 'id', 'v', 'items_v', 'id', 10)") ms"; fi
fi
if wants kmeans; then
    echo "== kmeans, 1024 clusters, 20 iterations, in one session (the kernel alone: cuda_bench --only train)"
    clusters="SELECT count(*) FROM kmeans('items', 'v', 1024, 20)"
    in_session -c "$clusters" -c "$clusters" -c "$clusters"
fi

if wants graph; then
    echo "== knn_graph, $rows x 128, k = 10"
    memory=(-c "SET maintenance_work_mem = '4GB'" -c "SET work_mem = '2GB'" -c 'SET max_parallel_maintenance_workers = 15')
    echo "a table of as many edges, made up: $(timed 2 -c "SET work_mem = '2GB'" -c 'DROP TABLE IF EXISTS made_up' \
        -c "CREATE TABLE made_up AS SELECT i / 10 AS src, (1 + i % 10)::int AS rank, $rows - i / 10 AS dst,
            (i % 1000)::real AS distance FROM generate_series(0::bigint, 10 * $rows - 1) AS i") ms"
    for method in nn_descent exact; do
        graph="knn_graph('items', 'id', 'v', 10, '$method')"
        echo "$method: into a table $(timed 2 "${memory[@]}" -c "SET pgwarp.build_executor = 'gpu'" -c 'DROP TABLE IF EXISTS graph' \
            -c "CREATE TABLE graph AS SELECT * FROM $graph") ms, counted only $(timed 1 "${memory[@]}" \
            -c "SET pgwarp.build_executor = 'gpu'" -c "SELECT count(*) FROM $graph") ms"
        ask -At -c 'CREATE INDEX ON graph (src)' "${memory[@]}" \
            -c "SELECT 'recall@10: ' || knn_graph_recall('graph', 'items', 'id', 'v', 200)"
    done
    if wants graph_cpu; then
        echo "nn_descent by the CPU: $(timed 1 "${memory[@]}" -c "SET pgwarp.build_executor = 'cpu'" \
            -c "SELECT count(*) FROM knn_graph('items', 'id', 'v', 10, 'nn_descent')") ms"
    fi
    ask -c 'DROP TABLE made_up, graph' >/dev/null
fi

if wants large; then
    echo "== CREATE INDEX, 10 x $rows x 96"
    ask -c 'DROP TABLE IF EXISTS wide' -c 'CREATE TABLE wide (id int, v vector(96)) WITH (parallel_workers = 15)'
    load_copies wide 10 'subvector(v, 1, 96)' items
    ask -c 'DROP TABLE items' -c 'ALTER TABLE wide RENAME TO items' -c 'VACUUM ANALYZE items' -c 'CHECKPOINT' >/dev/null
    echo "sum(vector_norm(v)): $(timed 3 -c "$scan") ms"
    with_memory build gpu 0
    for round in 1 2 3; do build gpu 0; done
    # How long the one that writes WAL has it, beside everybody else.
    ask -At -c 'ALTER SYSTEM SET track_wal_io_timing = on' -c 'SELECT pg_reload_conf()' -c 'SELECT pg_sleep(1)' \
        -c "SELECT pg_stat_reset_shared('wal')" >/dev/null
    build gpu 0
    ask -At -c 'SELECT pg_sleep(1)' -c "SELECT 'WAL: ' || w FROM pg_stat_wal AS w" \
        -c 'ALTER SYSTEM RESET track_wal_io_timing' -c 'SELECT pg_reload_conf()' | grep WAL
    choose_asked_rows $((10 * rows))
    # With the effort that the curve promises the recall for.
    ask -At -c "SELECT 'recall by probes ' || recall_by_probes FROM ivfpq_info('items_v')"
    read -r probes candidates < <(psql -XAt -F ' ' -c "SELECT probes, candidates FROM ivfpq_info('items_v')")
    recall_of_asked "$probes" "$candidates" cpu auto
fi

if wants prewarm; then
    # Rows four times as long as the table's, and a byte for each of their dimensions.
    ask -c 'DROP INDEX IF EXISTS items_v' -c "SET maintenance_work_mem = '${MEMORY:-2GB}'" -c 'SET client_min_messages = debug1' \
        -c "SET pgwarp.build_executor = 'gpu'" \
        -c 'CREATE INDEX items_long ON items USING ivfpq (((v || v || v || v)::vector(384))) WITH (m = 384)' |
        grep -E -A1 'rows in' || true
    for round in 1 2 3; do
        echo "== prewarm of $(psql -XAtc "SELECT pg_size_pretty(pg_relation_size('items_long'))")"
        # What the device holds of it goes with the worker, not what shared buffers hold.
        ask -At -c 'CREATE EXTENSION IF NOT EXISTS pg_prewarm' -c "SELECT pg_prewarm('items_long') || ' pages in shared buffers'"
        # The worker has no database connection: pg_terminate_backend() does not know it.
        worker=$(psql -XAtc 'SELECT pid FROM pgwarp_service()')
        kill "$worker"
        until psql -XAtc "SELECT serves AND pid <> $worker FROM pgwarp_service()" | grep -q t; do sleep 0.2; done
        ask -At -c "SELECT 'resident before: ' || coalesce(max(resident_lists), 0) || ' lists' FROM pg_stat_pgwarp WHERE indexname = 'items_long'"
        ask -At -c '\timing on' -c "SELECT pgwarp_prewarm('items_long') || ' lists'" -c '\timing off' -c 'SELECT * FROM pgwarp_devices()'
    done
    ask -c 'DROP INDEX items_long'
fi

if wants peer && psql -XAtqc "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'" | grep -q 1; then
    createdb peer
    psql -Xq peer -c 'CREATE EXTENSION vector' -c 'CREATE TABLE items (id int, v vector(128)) WITH (parallel_workers = 15)'
    PGDATABASE=peer load_rows items
    psql -Xq peer -c 'VACUUM ANALYZE items' -c 'CHECKPOINT'
    echo "pgvector hnsw: $(PGDATABASE=peer timed 1 -c "SET maintenance_work_mem = '8GB'" \
        -c 'CREATE INDEX ON items USING hnsw (v vector_l2_ops)') ms"
    if wants join; then
        ask -c "\\copy few TO '$RESULTS/queries.tsv'"
        psql -Xq peer -c 'CREATE TABLE queries (id int, v vector(128), far real)' -c "\\copy queries FROM '$RESULTS/queries.tsv'" -c 'ANALYZE queries'
        for effort in 40 60 80 100 150; do
            lateral="FROM queries AS q, LATERAL (SELECT id, items.v <-> q.v AS d FROM items ORDER BY items.v <-> q.v LIMIT 10) AS r"
            echo "pgvector LATERAL, 500 queries (not $joined), ef_search $effort: $(PGDATABASE=peer timed 2 \
                -c "SET hnsw.ef_search = $effort" -c "SELECT count(r.id) $lateral") ms, recall@10 $(psql -XAtq peer \
                -c "SET hnsw.ef_search = $effort" -c "SELECT round(count(*) FILTER (WHERE d <= far * 1.000001) / 5000.0, 4) $lateral")"
        done
    fi
fi

