# LATERAL joins with the nearest rows on a GPU, beside knn_join and single scans of the service: a script for the step
# `queries` of run. DATA has GloVe, or what SET names, as fvecs; the queries are the set's own, no rows of the table.
#   SET=glove  QUERIES_EACH=10000  ROUNDS=3
# Goal: the join takes at most 1.2 times as long as knn_join.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
set=${SET:-glove} number=${QUERIES_EACH:-10000}
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 bench_pgwarp "$@"
}
# Loads the table and builds the index.
"$BENCH" --data "$set" --data-dir "${DATA:?}" --queries 100 --clients 1 --seconds 0.2 --keep --json "$RESULTS/load.json" --system pgwarp \
    --index 'CREATE INDEX ON items USING ivfpq (v {ops})' >/dev/null
ask -c "CREATE TABLE queries AS SELECT 0 AS id, v FROM items LIMIT 0"
vectors_of "$DATA/${set}_query.fvecs" "$number" | ask -c '\copy queries FROM STDIN'
ask -c 'ANALYZE queries' -c "SELECT pgwarp_prewarm('items_v_idx')" >/dev/null
function="SELECT count(*) FROM knn_join('queries', 'id', 'v', 'items_v_idx', 'id', 10)"
lateral='SELECT q.id AS query, r.id AS key FROM queries AS q, LATERAL (SELECT id FROM items AS i ORDER BY i.v <-> q.v LIMIT 10) AS r'
echo "== $number queries: knn_join, LATERAL join, in turn"
runs=()
for ((i = 0; i < ${ROUNDS:-3}; ++i)); do runs+=(-c "$function" -c "SELECT count(key) FROM ($lateral) AS s"); done
ask -c 'SET client_min_messages = debug1' -c '\timing on' "${runs[@]}" 2>&1 | grep -v '^DEBUG.*\(rehash\|snapshot\)'
echo '== LATERAL join, single scans of the service'
ask -c 'SET ivfpq.enable_batched_join = off' -c '\timing on' -c "SELECT count(key) FROM ($lateral) AS s"
ask -c "EXPLAIN (ANALYZE, TIMING OFF) $lateral"
ask -c "SELECT 'rows of the join that knn_join has: ' || count(j.key) || ' of ' || count(*) FROM ($lateral) AS s
    LEFT JOIN knn_join('queries', 'id', 'v', 'items_v_idx', 'id', 10) AS j ON j.query_key = s.query AND j.key = s.key"
dropdb bench_pgwarp
