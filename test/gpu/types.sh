# halfvec beside vector on the GPU: table, build, queries through the service, a join, a clustering and a
# graph: a script for the step `queries` of run.
#   SETS="glove:l2"         data sets in DATA, as pgwarp_bench names them, each with its metric
#   CLIENTS=1,16,64  SECONDS_EACH=2  REPEAT=3
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
for set in ${SETS:-glove:l2}; do
    name=${set%:*} metric=${set#*:}
    echo "== $name, $metric"
    "$BENCH" --data "$name" --data-dir "$DATA" --metric "$metric" --queries 1000 --clients "${CLIENTS:-1,16,64}" \
        --seconds "${SECONDS_EACH:-2}" --repeat "${REPEAT:-3}" --builds 3 --keep --json "$RESULTS/$(basename "$name").json" \
        --extension pgwarp --index 'CREATE INDEX ON items USING ivfpq (v {ops})' \
        --set ivfpq.target_recall=0.95 --set ivfpq.target_recall=0.99 --set 'ivfpq.probes=20; ivfpq.candidates=200' \
        --system vector --type vector --system halfvec --type halfvec
    for type in vector halfvec; do
        # One session, so that the second call finds the device open.
        echo "$type: a join of 20,000 rows, k-means and an exact graph on the GPU, each twice (ms)"
        psql -XAtq -v ON_ERROR_STOP=1 "bench_$type" -c "SET pgwarp.build_executor = 'gpu'" \
            -c "SET maintenance_work_mem = '4GB'" -c "SET work_mem = '1GB'" -c 'SET max_parallel_workers_per_gather = 15' \
            -c 'DROP TABLE IF EXISTS queries' -c 'CREATE TABLE queries AS SELECT id, v FROM items WHERE id < 20000' \
            -c 'ANALYZE queries' -c '\timing on' \
            -c "SELECT count(*), sum(key) FROM knn_join('queries', 'id', 'v', 'items_v_idx', 'id', 10)" \
            -c "SELECT count(*), sum(key) FROM knn_join('queries', 'id', 'v', 'items_v_idx', 'id', 10)" \
            -c "SELECT count(*) FROM kmeans('items', 'v', 1024, 20)" -c "SELECT count(*) FROM kmeans('items', 'v', 1024, 20)" \
            -c "SELECT count(*), sum(dst) FROM knn_graph('items', 'id', 'v', 10, 'exact')" \
            -c "SELECT count(*), sum(dst) FROM knn_graph('items', 'id', 'v', 10, 'exact')" 2>&1 | paste -sd' '
        dropdb "bench_$type"
    done
done
