# 50 x ROWS x 96 without a condition: CREATE INDEX, recall of queries from outside the table, and queries/s through
# the service: a script for the step `queries` of run. DATA has *_base.bvecs and its queries (see grown_rows.sh).
#   ROWS=2000000    100,000,000 rows take 45 GB of disk, and SHARED_BUFFERS=50GB HUGE_PAGES=26500 for run
#   OPTIONS=';refine = int8'   options of the indexes to measure one after the other; by default one index without any
#   EXECUTORS=auto   who searches: "service cpu" measures both, one after the other
#   BUILDS=3  ASKED=500  CLIENTS="1 16 64 64 64"  SECONDS_EACH=4  TARGETS="0.95 0.99"
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
rows=${ROWS:-2000000} asked=${ASKED:-500}
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 "$@"
}
# Options of the index.
build_index() {
    local build
    for ((build = 0; build < ${BUILDS:-3}; ++build)); do
        ask -c "SET maintenance_work_mem = '24GB'" -c 'DROP INDEX IF EXISTS items_v' -c 'SET client_min_messages = debug1' -c '\timing on' \
            -c "CREATE INDEX items_v ON items USING ivfpq (v)${1:+ WITH ($1)}" 2>&1 | grep -v 'does not exist'
    done
    ask -c "SELECT pg_size_pretty(pg_relation_size('items_v'))" \
        -c "SELECT lists || ' lists, ' || probes || ' probes, ' || candidates || ' candidates' FROM ivfpq_info('items_v')" | paste -sd' '
    echo "prewarmed: $(ask -c "SELECT pgwarp_prewarm('items_v') || ' lists'"), $SECONDS s"
}

make_truth() {
    # Two kinds of queries: those of the set, and rows that were moved by noise of up to 8 each way.
    ask -c "CREATE TABLE asked AS SELECT id, v FROM queries WHERE id < $asked" -c "INSERT INTO asked
        WITH noise AS MATERIALIZED (SELECT n, array_agg((random() * 16 - 8)::real)::vector AS v
            FROM generate_series(0, $asked - 1) AS n, generate_series(1, 96 + 0 * n) AS d GROUP BY n),
        drawn AS MATERIALIZED (SELECT row_number() OVER () - 1 AS n, v FROM (SELECT v FROM items TABLESAMPLE SYSTEM (${SAMPLE:-0.02}) LIMIT 20 * $asked) AS s)
        SELECT 1000000 + noise.n, (drawn.v + noise.v)::vector(96) FROM drawn JOIN noise ON drawn.n = 20 * noise.n" -c 'ALTER TABLE asked ADD PRIMARY KEY (id)' -c 'VACUUM ANALYZE asked'
    # The device compares them with all rows.
    ask -c "SET maintenance_work_mem = '2GB'" -c "SET work_mem = '1GB'" -c "SET pgwarp.build_executor = 'gpu'" -c 'SET ivfpq.target_recall = 1' -c 'SET max_parallel_workers_per_gather = 15' \
        -c "CREATE TABLE truth AS SELECT query_key AS id, rank, distance FROM knn_join('asked', 'id', 'v', 'items_v', 'id', 100)" -c 'ANALYZE truth'
    echo "exact neighbors of $(ask -c 'SELECT count(DISTINCT id) FROM truth') queries, $SECONDS s"
}

measure() {
    local target limit kind from
    for target in ${TARGETS:-0.95 0.99}; do
        for limit in 1 10 100; do
            ask -c "SET ivfpq.target_recall = $target" -c 'SET enable_seqscan = off' -c 'SET ivfpq.enable_batched_join = off' -c 'SET enable_sort = on' -c "
                SELECT 'target $target, LIMIT $limit, ' || CASE WHEN id < 1000000 THEN 'other photos' ELSE 'moved rows' END || ': ' ||
                    round(avg(hits) / $limit, 4) || ' of ' || count(*) || ', give or take ' ||
                    round((stddev(hits) / $limit / sqrt(count(*)))::numeric, 4)
                FROM (SELECT asked.id, count(*) FILTER (WHERE found.d <= far * 1.000001) AS hits
                    FROM asked JOIN (SELECT id, distance AS far FROM truth WHERE rank = $limit) AS t USING (id)
                        CROSS JOIN LATERAL (SELECT items.v <-> asked.v AS d FROM items ORDER BY items.v <-> asked.v LIMIT $limit) AS found
                    GROUP BY asked.id) AS s GROUP BY id < 1000000 ORDER BY id < 1000000"
            ask -c "SET ivfpq.target_recall = $target" -c 'SET enable_seqscan = off' \
                -c "SELECT FROM items ORDER BY v <-> (SELECT v FROM queries WHERE id = 7) LIMIT $limit" -c 'SELECT l FROM ivfpq_last_scan() AS l' | tail -n 1
        done
        # shellcheck disable=SC2086 # several words
        for kind in 'other photos' 'moved rows'; do
            from=0
            if [[ $kind == moved* ]]; then from=1000000; fi
            printf '\\set n random(%d, %d)\nSELECT id FROM items ORDER BY v <-> (SELECT v FROM asked WHERE id = :n) LIMIT 10;\n' \
                $from $((from + asked - 1)) >search.sql
            echo "target $target, $kind:"
            PGOPTIONS="-c ivfpq.target_recall=$target" clients_of search.sql "${SECONDS_EACH:-4}" ${CLIENTS:-1 16 64 64 64}
        done
    done
    ask -c "SELECT service_searches || ' by the service, ' || fallbacks || ' fallbacks' FROM pg_stat_pgwarp WHERE indexname = 'items_v'"
}

echo "== 50 x $rows x 96"
make_large_table "$rows" 1000
IFS=';' read -ra indexes <<<"${OPTIONS-}"
for options in "${indexes[@]-}"; do
    echo "-- index ${options:-without options}, $SECONDS s"
    build_index "$options"
    if [[ $options == "${indexes[0]-}" ]]; then make_truth; fi
    for executor in ${EXECUTORS:-auto}; do
        echo "-- executor $executor, $SECONDS s"
        ask -c "ALTER ROLE CURRENT_USER SET ivfpq.executor = $executor"
        measure
    done
    ask -c 'ALTER ROLE CURRENT_USER RESET ivfpq.executor'
done
