# Builds, joins, clusterings and graphs on two devices, beside one: times, and whether the results are equal. A
# script for the step `queries` of run. DATA has NAME_base.bvecs, which grows to ROWS rows (1000000).
#   DEVICES="0 0,0"         pgwarp.devices, one after the other; the first is what others are compared with. One GPU
#                           gains nothing by being two: '0,1' where there are two of them
#   QUERIES_JOINED=100000   queries of the join
#   GRAPH_ROWS=500000       rows of the exact graph; that by nn_descent has all
#   PART_MEMORY=500         MB of each device for the graph by nn_descent: too few for all rows, so it is made in parts
#   ROUNDS=2                times that each is measured; the least counts
# shellcheck shell=bash
set -euo pipefail
rows=${ROWS:-1000000} joined=${QUERIES_JOINED:-100000} graph_rows=${GRAPH_ROWS:-500000}
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 "$@"
}
with=(-c "SET maintenance_work_mem = '4GB'" -c "SET work_mem = '1GB'" -c 'SET max_parallel_maintenance_workers = 15'
    -c 'SET max_parallel_workers_per_gather = 15' -c "SET pgwarp.build_executor = 'gpu'" -c 'SET client_min_messages = debug1')
# What work it was, the least milliseconds of the last statement, and by which devices.
timed() {
    local what=$1 round out
    shift
    for ((round = 0; round < ${ROUNDS:-2}; ++round)); do
        out=$(ask "${with[@]}" -c '\timing on' "$@" 2>&1)
        grep -q '^Time' <<<"$out" || echo "$out" >&2
        if ((round == 0)); then grep -o 'graph in [0-9]* parts.*' <<<"$out" >&2 || true; fi
        echo "$(sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' <<<"$out" | tail -n 1) ms, on $(sed -n 's/.* on \([0-9]* x [^:]*\|NVIDIA [^:]*\).*/\1/p' <<<"$out" | head -n 1)"
    done | sort -n | head -n 1 | sed "s/^/$what: /"
}
differences() {
    ask -c "SELECT '$1: ' || (SELECT count(*) FROM (TABLE $2 EXCEPT ALL TABLE $3) AS s) || ' differ of ' || count(*) FROM $2"
}

make_rows "$rows" 128
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' -c 'CREATE TABLE items (id int, v vector(128)) WITH (parallel_workers = 15)'
load_rows items
ask -c "CREATE TABLE queries AS SELECT id, v + (SELECT v FROM items WHERE id = 3) * array_fill(0.01::real, ARRAY[128])::vector AS v
        FROM items WHERE id % ($rows / $joined) = 0" \
    -c "CREATE TABLE graphed WITH (parallel_workers = 15) AS SELECT * FROM items WHERE id <= $graph_rows" -c 'VACUUM ANALYZE' -c CHECKPOINT
number=0
for devices in ${DEVICES:-0 0,0}; do
    echo "== pgwarp.devices = '$devices'"
    echo "pgwarp.devices = '$devices'" >>"$CLUSTER/data/postgresql.conf"
    pg_ctl -D "$CLUSTER/data" -w -l "$CLUSTER/log" restart >/dev/null
    ask -c 'SELECT sum(vector_norm(v)) FROM items' >/dev/null
    timed 'CREATE INDEX' -c "DROP INDEX IF EXISTS items_$number" -c "CREATE INDEX items_$number ON items USING ivfpq (v)"
    timed knn_join -c "DROP TABLE IF EXISTS join_$number" -c "CREATE TABLE join_$number AS
        SELECT query_key, rank, distance FROM knn_join('queries', 'id', 'v', 'items_$number', 'id', 10)"
    timed kmeans -c "DROP TABLE IF EXISTS kmeans_$number" -c "CREATE TABLE kmeans_$number AS SELECT * FROM kmeans('items', 'v', 1024, 20)"
    timed 'exact graph' -c "DROP TABLE IF EXISTS graph_$number" -c "CREATE TABLE graph_$number AS
        SELECT src, rank, distance FROM knn_graph('graphed', 'id', 'v', 10, 'exact')"
    only_commas=${devices//[^,]/}
    timed 'graph in parts' -c "SET pgwarp.build_memory = '$(((${#only_commas} + 1) * ${PART_MEMORY:-500}))MB'" \
        -c "DROP TABLE IF EXISTS parts_$number" -c "CREATE TABLE parts_$number AS SELECT * FROM knn_graph('items', 'id', 'v', 10, 'nn_descent')"
    ask -c "SELECT 'recall of the graph in parts: ' || knn_graph_recall('parts_$number', 'items', 'id', 'v', 1000)"
    ask -c "SELECT 'entries: ' || rows || ', recall@10 ' || ivfpq_recall('items_$number', 1000, 10) FROM ivfpq_info('items_$number')"
    if ((number > 0)); then
        differences 'distances of the join' join_0 "join_$number"
        differences 'distances of the graph' graph_0 "graph_$number"
        ask -c "SELECT 'clusters: at most ' || max(a.centroid <-> b.centroid) || ' apart, sizes by ' || max(abs(a.size - b.size)) ||
            ', mean size ' || avg(a.size)::int FROM kmeans_0 AS a JOIN kmeans_$number AS b USING (cluster)"
    fi
    number=$((number + 1))
done
