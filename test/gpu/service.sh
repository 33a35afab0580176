# What the service gives over libpq, beside the CPU path, the service on the CPU, and pgvector: a
# script for the step `queries` of run. GloVe is expected in DATA.
#   CLIENTS=1,2,4,8,16,32,64,128  SECONDS_EACH=2  REPEAT=3  HOST=1  PEER=1  PEER_EF=550
# shellcheck shell=bash
set -euo pipefail
clients=${CLIENTS:-1,2,4,8,16,32,64,128}
common=(--data glove --data-dir "$DATA" --queries 2000 --clients "$clients" --seconds "${SECONDS_EACH:-2}"
    --repeat "${REPEAT:-3}" --keep)
index='CREATE INDEX ON items USING ivfpq (v {ops})'
# Codes twice as long: the device has room and look-ups to spare, and sessions have fewer rows to rank.
long_codes="CREATE INDEX ON items USING ivfpq (v {ops}) WITH (m = ${LONG_CODES:-50})"
cd "$CLUSTER"

configure() {
    printf '%s\n' "$@" >>"$CLUSTER/data/postgresql.conf"
    pg_ctl -D "$CLUSTER/data" -w -l "$CLUSTER/log" restart >/dev/null
}

echo '== the GPU, and the CPU path'
"$BENCH" "${common[@]}" --json "$RESULTS/gpu.json" --system pgwarp --index "$index" \
    --set ivfpq.executor=cpu --set ivfpq.executor=service

echo '== the GPU, with codes twice as long'
"$BENCH" "${common[@]}" --json "$RESULTS/long.json" --system 'long codes' --extension pgwarp \
    --index "$long_codes" --set ivfpq.executor=service

# An index aims above its target, to be sure of it. The peer gets the least that reaches a recall, too.
echo '== the same two with the least effort that has a recall of 0.95 with these queries'
least='ivfpq.executor=service; ivfpq.target_recall=0.920..0.960'
"$BENCH" "${common[@]}" --json "$RESULTS/least.json" --extension pgwarp \
    --system pgwarp --index "$index" --reach "$least" \
    --system 'long codes' --index "$long_codes" --reach "$least"
dropdb bench_long_codes

echo '== 64 clients while rows are inserted'
psql -XAtq bench_pgwarp <<'SQL'
-- Far away from where the queries are: what they find does not change.
CREATE TABLE spare AS SELECT v * array_fill(4::real, ARRAY[vector_dims(v)])::vector AS v FROM items LIMIT 20000;
ALTER TABLE spare ADD id serial PRIMARY KEY;
SQL
cat >insert.sql <<'SQL'
\set n random(1, 20000)
INSERT INTO items SELECT 1000000 + id, v FROM spare WHERE id = :n;
SQL
pgbench -n -c 4 -R 1000 -T 12 -f insert.sql bench_pgwarp >"$RESULTS/inserts.txt" 2>&1 &
inserts=$!
"$BENCH" "${common[@]}" --clients 64 --repeat 1 --seconds 5 --json "$RESULTS/inserts.json" \
    --system pgwarp --index "$index" --set ivfpq.executor=service || true
wait $inserts || true
grep -E 'tps|processed' "$RESULTS/inserts.txt" || true

echo '== the same answers'
psql -XAtq bench_pgwarp <<'SQL'
DELETE FROM items WHERE id >= 1000000;
VACUUM items;
CREATE FUNCTION answer(query vector, executor text) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
    -- Each would choose its own otherwise.
    PERFORM set_config('ivfpq.probes', '40', true), set_config('ivfpq.candidates', '100', true);
    PERFORM set_config('ivfpq.executor', executor, true);
    RETURN (SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v <-> query LIMIT 10) AS s);
END $$;
SELECT count(*) FILTER (WHERE answer(v, 'cpu') = answer(v, 'service')) || ' of ' || count(*)
FROM (SELECT v FROM spare LIMIT 1000) AS q;
SELECT 'prewarm: ' || pgwarp_prewarm('items_v_idx') || ' lists';
SELECT * FROM pgwarp_devices();
DROP TABLE items, spare;
SELECT pg_sleep(2);
SELECT * FROM pgwarp_devices();
SQL
dropdb bench_pgwarp

if [[ ${HOST:-1} == 1 ]]; then
    echo '== the service on the CPU'
    configure "pgwarp.devices = 'host'"
    "$BENCH" "${common[@]}" --json "$RESULTS/host.json" --system 'service on the CPU' --index "$index" \
        --set ivfpq.executor=service
    dropdb bench_service_on_the_cpu
    configure "pgwarp.devices = 'auto'"
fi

if psql -XAtqc "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'" | grep -q 1 && [[ ${PEER:-1} == 1 ]]; then
    echo '== pgvector'
    "$BENCH" "${common[@]}" --json "$RESULTS/peer.json" --build-set "maintenance_work_mem=8GB" \
        --system 'pgvector hnsw' --extension vector --index 'CREATE INDEX ON items USING hnsw (v {ops})' \
        --set "hnsw.ef_search=${PEER_EF:-550}"
fi
files=()
for file in gpu long host peer; do
    if [[ -e $RESULTS/$file.json ]]; then files+=(--from-json "$RESULTS/$file.json"); fi
done
"$BENCH" "${files[@]}" --svg-clients "$RESULTS/clients.svg"
