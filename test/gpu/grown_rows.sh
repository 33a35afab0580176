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
