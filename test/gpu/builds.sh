# How long builds, joins and clusterings take on the GPU, beside the CPU and pgvector: a script for
# the step `queries` of run. DATA has NAME_base.bvecs, which grows to ROWS rows (1000000), and is
# taken ten times, cut to 96 dimensions and moved a little, for the large table (LARGE=0: not).
# shellcheck shell=bash
set -euo pipefail
rows=${ROWS:-1000000}
cd "$CLUSTER"
base=$(compgen -G "$DATA/*base.bvecs" | head -n 1)
"$BENCH"_data grow "${base%_base.bvecs}" "$rows" "$RESULTS/grown" >/dev/null

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

python3 - "$RESULTS/grown_base.bvecs" <<'PYTHON' >"$RESULTS/rows.tsv"
import sys
with open(sys.argv[1], 'rb') as file:
    for i in range(10 ** 9):
        row = file.read(132)
        if len(row) < 132: break
        print(i, '[' + ','.join(map(str, row[4:])) + ']', sep='\t')
PYTHON
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' \
    -c 'CREATE UNLOGGED TABLE items (id int, v vector(128))' \
    -c "\\copy items FROM '$RESULTS/rows.tsv'" -c 'ALTER TABLE items SET (parallel_workers = 15)' \
    -c 'ALTER TABLE items SET LOGGED' -c 'VACUUM ANALYZE items' -c 'SELECT sum(vector_norm(v)) FROM items' \
    -c 'CHECKPOINT' >/dev/null

build() {
    ask -c "SET maintenance_work_mem = '${MEMORY:-2GB}'" -c 'DROP INDEX IF EXISTS items_v' \
        -c 'SET client_min_messages = debug1' -c "SET pgwarp.build_executor = '$1'" \
        -c 'CREATE INDEX items_v ON items USING ivfpq (v)' | grep -A1 'rows in'
    ask -At -c "SELECT 'recall@10: ' || ivfpq_recall('items_v', 1000, 10)"
}
scan="SET max_parallel_workers_per_gather = 15; SELECT sum(vector_norm(v)) FROM items"
echo "== CREATE INDEX, $rows x 128"
for executor in cpu gpu gpu; do build $executor; done
echo "sum(vector_norm(v)): $(timed 3 -c "$scan") ms"

if psql -XAtqc "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'" | grep -q 1 && [[ ${PEER:-1} == 1 ]]; then
    createdb peer
    psql -Xq peer -c 'CREATE EXTENSION vector' -c 'CREATE TABLE items (id int, v vector(128))' \
        -c "\\copy items FROM '$RESULTS/rows.tsv'" -c 'ALTER TABLE items SET (parallel_workers = 15)' -c 'VACUUM ANALYZE items'
    echo "pgvector hnsw: $(PGDATABASE=peer timed 1 -c "SET maintenance_work_mem = '8GB'" \
        -c 'CREATE INDEX ON items USING hnsw (v vector_l2_ops)') ms"
fi

if [[ ${LARGE:-1} != 0 ]]; then
    echo "== CREATE INDEX, 10 x $rows x 96"
    ask -c 'CREATE TABLE wide AS SELECT n * 10000000 + id AS id,
                (subvector(v, 1, 96) + (SELECT array_agg((n * d * 7919 % 17)::real)::vector
                                        FROM generate_series(1, 96) AS d))::vector(96) AS v
            FROM generate_series(0, 9) AS n, items' \
        -c 'DROP TABLE items' -c 'ALTER TABLE wide RENAME TO items' \
        -c 'ALTER TABLE items SET (parallel_workers = 15)' -c 'VACUUM ANALYZE items' >/dev/null
    echo "sum(vector_norm(v)): $(timed 3 -c "$scan") ms"
    with_memory build gpu
    build gpu
fi
