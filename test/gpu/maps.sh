# Graphs, pairs, groups of duplicates, clusters and a layout of a large table: a script for the step `queries` of
# run. DATA has NAME_base.bvecs, which grows to ROWS rows (1000000). Each statement has a session of its own, whose
# device an earlier statement has opened.
#   ROWS=1000000  K=10  RADII="60 80 100"  RADIUS=60: of groups  LIMIT_SECONDS=40: a statement that takes longer is cancelled
#   WIDE=768: dimensions of the last groups, each row several times beside itself; 0: none
# Rows come later to two graphs: to one that triggers keep current, 100 and 900 in a statement, then to one that is appended to.
# Goals: the graph 1.5 s, 1,000 later rows 0.15, some 5,000,000 pairs 3, groups of the wide rows 5, clusters 5,
# communities 3, the layout 10.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
rows=${ROWS:-1000000} k=${K:-10} wide=${WIDE:-768}
ask() {
    psql -XAtq -v ON_ERROR_STOP=0 -c "SET maintenance_work_mem = '16GB'" -c 'SET max_parallel_maintenance_workers = 15' \
        -c "SET work_mem = '2GB'" -c "SET statement_timeout = '${LIMIT_SECONDS:-40}s'" "$@" 2>&1 |
        grep -v 'DEBUG.*\(rehash\|snapshot\|parallel worker\|xlog\|building index\)' || true
}
timed() {
    echo "== $1"
    ask -c 'SET pgwarp.build_executor = gpu' \
        -c "DO \$\$BEGIN PERFORM knn_graph('few', 'id', 'v', 1, 'exact'); END\$\$" \
        -c 'RESET pgwarp.build_executor' -c 'SET client_min_messages = debug1' -c '\timing on' -c "$1"
}
make_rows "$rows" 128
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' \
    -c 'CREATE TABLE items (id int, v vector(128)) WITH (parallel_workers = 15)'
load_rows items
ask -c 'CREATE TABLE few AS SELECT * FROM items LIMIT 1000' \
    -c "CREATE TABLE later AS SELECT * FROM items WHERE id % ($rows / 1000) = 1" \
    -c "DELETE FROM items WHERE id % ($rows / 1000) = 1" \
    -c 'VACUUM ANALYZE items' -c 'SELECT sum(vector_norm(v)) FROM items' -c CHECKPOINT
for run in 1 2; do timed "SELECT * FROM knn_graph_create('graph$run', 'items', 'id', 'v', $k)"; done
timed "SELECT * FROM knn_graph_create('unlogged', 'items', 'id', 'v', $k, unlogged => true)"
timed "SELECT * FROM knn_graph_create('lists', 'items', 'id', 'v', $k, compact => true)"
ask -c 'ALTER TABLE items ADD PRIMARY KEY (id)' -c 'CREATE INDEX ON items USING ivfpq (v)'
timed "SELECT * FROM knn_graph_create('kept', 'items', 'id', 'v', $k, auto => true)"
timed "INSERT INTO items SELECT * FROM later ORDER BY id LIMIT 100"
timed "INSERT INTO items SELECT * FROM later ORDER BY id OFFSET 100"
timed "SELECT * FROM knn_graph_recall('kept', 'items', 'id', 'v')"
ask -c "SELECT knn_graph_stop('kept')"
timed "SELECT * FROM knn_graph_append('graph1', 'items', 'id', 'v')"
timed "SELECT * FROM knn_graph_recall('graph1', 'items', 'id', 'v')"
for radius in ${RADII:-60 80 100}; do
    timed "SELECT count(*), max(distance) FROM similar_pairs('items', 'id', 'v', $radius)"
done
timed "SELECT count(DISTINCT group_number), count(*) FROM duplicate_groups('items', 'id', 'v', ${RADIUS:-60})"
timed "SELECT count(DISTINCT label), count(*) FILTER (WHERE label < 0) FROM graph_hdbscan('graph2', 50)"
timed "SELECT count(DISTINCT community) FROM graph_communities('graph2')"
timed "SELECT count(*), min(x), max(x), min(y), max(y) FROM embedding_layout('graph2')"
((wide)) || exit 0
copies=v
for ((dims = 256; dims <= wide; dims += 128)); do copies+=' || v'; done
ask -c "CREATE TABLE wide_items WITH (parallel_workers = 15) AS SELECT id, $copies AS v FROM items" -c 'ANALYZE wide_items'
timed "SELECT count(DISTINCT group_number), count(*)
    FROM duplicate_groups('wide_items', 'id', 'v', ${RADIUS:-60} * sqrt($wide / 128.0))"
