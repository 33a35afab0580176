# How fast CLIENTS search a large table through the service while rows are inserted into it, beside how
# fast they do without inserts: a script for the step `queries` of run. DATA has NAME_base.bvecs, which
# grows to ROWS rows; the table has them COPIES times, cut to 96 dimensions and moved a little. Queries
# and inserted rows are near rows of the table, and are none of them.
#   ROWS=1000000  COPIES=10   the table has ROWS * COPIES rows; SHARED_BUFFERS=12GB of run hold it
#   CLIENTS=64  RATE=1000  SECONDS_EACH=10  ROUNDS=3   inserts a second, and rounds of both measurements
#   INSERTERS=16              sessions that insert
# shellcheck shell=bash
set -euo pipefail
rows=${ROWS:-1000000}
copies=${COPIES:-10}
clients=${CLIENTS:-64}
rate=${RATE:-1000}
seconds=${SECONDS_EACH:-10}
rounds=${ROUNDS:-3}
inserters=${INSERTERS:-16}
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"

ask() {
    psql -XAtq -v ON_ERROR_STOP=1 "$@"
}

make_rows "$rows" 96
ask -c 'CREATE EXTENSION IF NOT EXISTS pgwarp' -c 'DROP TABLE IF EXISTS items, rows' \
    -c 'CREATE UNLOGGED TABLE rows (id int, v vector(96))' \
    -c 'CREATE TABLE items (id bigint, v vector(96)) WITH (parallel_workers = 15)'
load_rows rows
rm "$RESULTS"/rows.* "$RESULTS"/grown_*
load_copies items "$copies" v rows
# Near rows, but none of them.
near_rows() { # table, number, seed
    ask -c "SELECT setseed($3)" -c "CREATE TABLE $1 AS
        WITH noise AS MATERIALIZED (SELECT n, array_agg((random() * 16 - 8)::real)::vector AS v
            FROM generate_series(0, 999) AS n, generate_series(1, 96 + 0 * n) AS d GROUP BY n)
        SELECT row_number() OVER ()::int AS id, (r.v + noise.v)::vector(96) AS v
        FROM (SELECT row_number() OVER () AS n, v FROM rows TABLESAMPLE BERNOULLI (LEAST(100, 110.0 * $2 / $rows))
            REPEATABLE ($2)) AS r JOIN noise ON noise.n = r.n % 1000 LIMIT $2" \
        -c "ALTER TABLE $1 ADD PRIMARY KEY (id)" -c "VACUUM ANALYZE $1" >/dev/null
}
near_rows queries 20000 0.25
near_rows spare 100000 0.75
ask -c 'DROP TABLE rows' -c "SET maintenance_work_mem = '4GB'" -c "SET pgwarp.build_executor = 'gpu'" \
    -c 'CREATE INDEX items_v ON items USING ivfpq (v)' -c 'VACUUM ANALYZE items' -c 'CHECKPOINT' \
    -c 'CREATE SEQUENCE inserted START 1000000000 CACHE 100'
ask -c "SELECT count(*) || ' rows' FROM items" -c "SELECT pgwarp_prewarm('items_v') || ' lists'" \
    -c "SELECT 'effort: ' || probes || ' probes, ' || candidates || ' candidates' FROM ivfpq_info('items_v')"

questions=$(ask -c 'SELECT count(*) FROM queries')
spares=$(ask -c 'SELECT count(*) FROM spare')
cat >search.sql <<SQL
\\set n random(1, $questions)
SELECT id FROM items ORDER BY v <-> (SELECT v FROM queries WHERE id = :n) LIMIT 10;
SQL
cat >insert.sql <<SQL
\\set n random(1, $spares)
INSERT INTO items SELECT nextval('inserted'), v FROM spare WHERE id = :n;
SQL
counters() {
    ask -F ' ' -c "SELECT batches, reloads, appends, received_bytes, service_searches, fallbacks FROM pg_stat_pgwarp
        WHERE indexname = 'items_v'"
}
tps_of() {
    sed -n 's/^tps = \([0-9]*\).*/\1/p' "$1"
}
export PGOPTIONS="-c ivfpq.executor=service -c enable_seqscan=off"
pgbench -n -M prepared -c "$clients" -j 8 -T 5 -f search.sql >/dev/null
declare -A sums=([without]=0 [with]=0)
for ((round = 1; round <= rounds; ++round)); do
    for kind in without with; do
        before=$(counters)
        if [[ $kind == with ]]; then
            pgbench -n -M prepared -c "$inserters" -j 2 -R "$rate" -T $((seconds + 1)) -f insert.sql >"$RESULTS/inserts.$round" 2>&1 &
            inserts=$!
            sleep 0.5
        fi
        pgbench -n -M prepared -c "$clients" -j 8 -T "$seconds" -f search.sql >"$RESULTS/$kind.$round" 2>&1
        after=$(counters)
        echo "round $round, $kind inserts: $(tps_of "$RESULTS/$kind.$round") queries/s, $(sed -n 's/^latency average = //p' "$RESULTS/$kind.$round") on average"
        if [[ $kind == with ]]; then
            wait "$inserts" || true
            echo "    $(tps_of "$RESULTS/inserts.$round") inserts/s"
        fi
        # shellcheck disable=SC2086 # several numbers
        set -- $before $after
        echo "    $(($7 - $1)) batches, $(($8 - $2)) whole lists sent again, $(($9 - $3)) appended to, $((${10} - $4)) bytes of entries received, $((${11} - $5)) searches by the service, $((${12} - $6)) fallbacks"
        sums[$kind]=$((sums[$kind] + $(tps_of "$RESULTS/$kind.$round")))
    done
done
echo "with inserts $((sums[with] * 100 / sums[without]))% of the queries/s without"

echo '== the same answers, at one effort'
ask <<'SQL'
CREATE FUNCTION answer(query vector, executor text) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('ivfpq.probes', '40', true), set_config('ivfpq.candidates', '100', true);
    PERFORM set_config('ivfpq.executor', executor, true);
    RETURN (SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v <-> query LIMIT 10) AS s);
END $$;
SELECT count(*) FILTER (WHERE answer(v, 'cpu') = answer(v, 'service')) || ' of ' || count(*)
FROM (SELECT v FROM queries LIMIT 1000) AS q;
SQL
