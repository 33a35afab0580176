# Rows for scripts that measure large tables: the set in DATA, NAME_base.bvecs of 128 bytes a row, grown,
# cut to some dimensions, and loaded by several sessions at a time. Sourced by scripts for the step
# `queries` of run.
# shellcheck shell=bash
loaders=8

# Number of rows, dimensions. Writes them to RESULTS/rows.N, a file for each loader, as id and vector.
make_rows() {
    local base
    base=$(compgen -G "$DATA/*base.bvecs" | head -n 1)
    "$BENCH"_data grow "${base%_base.bvecs}" "$1" "$RESULTS/grown" >/dev/null
    python3 - "$RESULTS/grown_base.bvecs" "$RESULTS/rows" $loaders "$2" <<'PYTHON'
import multiprocessing, os, sys
base, out, parts, dims = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows = os.path.getsize(base) // 132
def write(part):
    with open(base, 'rb') as file, open(f'{out}.{part}', 'w') as to:
        first, end = rows * part // parts, rows * (part + 1) // parts
        file.seek(first * 132)
        for i in range(first, end):
            to.write('%d\t[%s]\n' % (i, ','.join(map(str, file.read(132)[4:4 + dims]))))
with multiprocessing.Pool(parts) as pool:
    pool.map(write, range(parts))
PYTHON
}

# File of fvecs, greatest number of vectors: rows for COPY.
vectors_of() {
    python3 - "$1" "$2" <<'PYTHON'
import array, sys
with open(sys.argv[1], 'rb') as file:
    for i in range(int(sys.argv[2])):
        dims = array.array('i', file.read(4))
        if not dims: break
        row = array.array('f', file.read(4 * dims[0]))
        sys.stdout.write('%d\t[%s]\n' % (i, ','.join(map(repr, row))))
PYTHON
}

# Table with the columns id and v.
load_rows() {
    local part pids=()
    for ((part = 0; part < loaders; ++part)); do
        psql -Xq -v ON_ERROR_STOP=1 -c "\\copy $1 FROM '$RESULTS/rows.$part'" &
        pids+=($!)
    done
    wait "${pids[@]}"
}

# Table to fill, number of copies, expression for the 96 dimensions of v, table of the rows. Each copy
# is moved a little, in another direction; copy N has ids from 10,000,000 N on.
load_copies() {
    local copy moved pids=()
    for ((copy = 0; copy < $2; ++copy)); do
        moved=$(for ((d = 1; d <= 96; ++d)); do echo $(((copy * 2654435761 + d * 40503 * copy) / 128 % 17)); done | paste -sd,)
        psql -Xq -v ON_ERROR_STOP=1 -c "INSERT INTO $1 SELECT $copy * 10000000 + id,
            ($3 + '[$moved]'::vector)::vector(96) FROM $4" &
        pids+=($!)
    done
    wait "${pids[@]}"
}

# Number of rows, tenants. The table items of fifty times as many rows of 96 dimensions, and the table queries: the
# set's own, descriptors of other photos, not moved, and no rows of the table.
make_large_table() {
    local started=$SECONDS
    make_rows "$1" 96
    # A row's tenant says nothing of its vector: 104729 and 1000003 are primes.
    psql -XAtq -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items' \
        -c 'CREATE UNLOGGED TABLE grown (id int, v vector(96)) WITH (autovacuum_enabled = off)' \
        -c "CREATE UNLOGGED TABLE items (id int, v vector(96),
            tenant_id int GENERATED ALWAYS AS ((id::bigint * 104729 % 1000003 % $2)::int) STORED)
            WITH (parallel_workers = 15, autovacuum_enabled = off)" \
        -c 'CREATE TABLE queries (id int PRIMARY KEY, v vector(96))'
    load_rows grown
    rm -f "$RESULTS"/rows.*
    load_copies items 50 v grown
    echo "made and loaded in $((SECONDS - started)) s: $(psql -XAtqc "SELECT pg_size_pretty(pg_table_size('items'))")"
    python3 - "$RESULTS/grown_query.bvecs" <<'PYTHON' | psql -XAtq -v ON_ERROR_STOP=1 -c '\copy queries FROM STDIN'
import sys
with open(sys.argv[1], 'rb') as file:
    for i in range(1 << 30):
        row = file.read(132)
        if not row: break
        sys.stdout.write('%d\t[%s]\n' % (i, ','.join(map(str, row[4:100]))))
PYTHON
    rm -f "$RESULTS"/grown_*
    psql -XAtq -v ON_ERROR_STOP=1 -c 'DROP TABLE grown' -c 'VACUUM ANALYZE queries' -c 'ANALYZE items'
}

# Middle of the latencies in the logs of pgbench, in ms.
middle() {
    cat "$@" | awk '{print $3 / 1000}' | sort -n | awk '{a[NR] = $1} END {printf "p50 %.2f ms, p99 %.2f ms", a[int(NR / 2)], a[int(NR * 0.99)]}'
}

# Script of pgbench, seconds, numbers of clients: queries/s and latencies of each.
clients_of() {
    local script=$1 seconds=$2 count
    shift 2
    for count in "$@"; do
        rm -f "$RESULTS"/log.*
        pgbench -n -M prepared -c "$count" -j $((count < 8 ? count : 8)) -T "$seconds" -f "$script" -l --log-prefix="$RESULTS/log" \
            --sampling-rate=0.1 >"$RESULTS/pgbench.$count" 2>&1
        echo "$count clients: $(sed -n 's/^tps = \([0-9]*\).*/\1/p' "$RESULTS/pgbench.$count") queries/s, $(middle "$RESULTS"/log.*)"
    done
    rm -f "$RESULTS"/log.*
}
