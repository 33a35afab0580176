# Graphs, pairs, groups of duplicates, clusters and a layout of a large table: a script for the step `queries` of
# run. DATA has NAME_base.bvecs, which grows to ROWS rows (1000000).
#   ROWS=1000000  K=10  RADII="60 80 100"  LIMIT_SECONDS=150: a statement that takes longer is cancelled
# Goals: the graph 1.5 s, 1,000 appended rows 0.15, some 5,000,000 pairs 3, clusters 5, communities 3, the layout 10.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
rows=${ROWS:-1000000} k=${K:-10}
ask() {
    psql -XAtq -v ON_ERROR_STOP=0 -c "SET maintenance_work_mem = '16GB'" -c 'SET max_parallel_maintenance_workers = 15' \
        -c "SET work_mem = '2GB'" -c "SET statement_timeout = '${LIMIT_SECONDS:-150}s'" -c 'SET client_min_messages = debug1' "$@" 2>&1 |
        grep -v 'DEBUG.*\(rehash\|snapshot\|parallel worker\|xlog\|building index\)' || true
}
timed() {
    echo "== $1"
    ask -c '\timing on' -c "$1"
}
make_rows "$rows" 128
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' \
    -c 'CREATE TABLE items (id int, v vector(128)) WITH (parallel_workers = 15)'
load_rows items
ask -c 'VACUUM ANALYZE items' -c 'SELECT sum(vector_norm(v)) FROM items' -c CHECKPOINT
for run in 1 2; do
    ask -c "DROP TABLE IF EXISTS graph$run"
    timed "SELECT * FROM knn_graph_create('graph$run', 'items', 'id', 'v', $k)"
done
timed "SELECT * FROM knn_graph_create('lists', 'items', 'id', 'v', $k, compact => true)"
ask -c "INSERT INTO items SELECT id + 100000000, v + v FROM items WHERE id % ($rows / 1000) = 1"
timed "SELECT * FROM knn_graph_append('graph1', 'items', 'id', 'v')"
timed "SELECT * FROM knn_graph_recall('graph1', 'items', 'id', 'v')"
for radius in ${RADII:-60 80 100}; do
    timed "SELECT count(*), max(distance) FROM similar_pairs('items', 'id', 'v', $radius)"
done
timed "SELECT count(DISTINCT group_number), count(*) FROM duplicate_groups('items', 'id', 'v', ${RADIUS:-60})"
timed "SELECT count(DISTINCT label), count(*) FILTER (WHERE label < 0) FROM graph_hdbscan('graph2', 50)"
timed "SELECT count(DISTINCT community) FROM graph_communities('graph2')"
timed "SELECT count(*), min(x), max(x), min(y), max(y) FROM embedding_layout('graph2')"
