# One table beside the same rows in hash partitions, through the service: queries/s, recall, LATERAL joins: a script for
# the step `queries` of run. DATA has GloVe, or what SET names, as fvecs; the queries are the set's own, no rows of the table.
#   SET=glove  PARTITIONS="8 64"  QUERIES_EACH=10000  CLIENTS="1 16 64"  SECONDS_EACH=2  ROUNDS=2  LIMITS="10 100"
#   MAX_SEARCHES=1024   pgwarp.max_searches, if it is not to be the default
# Goals: 8 partitions take at most 1.5 times as long as one table, 64 at most 4 times.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
# shellcheck source=test/gpu/grown_rows.sh
source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
set=${SET:-glove} number=${QUERIES_EACH:-10000}
export PGDATABASE=partitions
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 "$@"
}
# Table.
measure() {
    local limit i
    ask -c "SET client_min_messages = error" -c "SELECT '$1: ' || sum(pgwarp_prewarm(i::regclass)) || ' lists of ' || count(*) || ' indexes prewarmed'
        FROM (SELECT indexrelid AS i FROM pg_index WHERE indrelid IN (SELECT relid FROM pg_partition_tree('$1') WHERE isleaf
            UNION ALL SELECT '$1'::regclass WHERE NOT EXISTS (SELECT FROM pg_partition_tree('$1') WHERE isleaf)) AND indexrelid::regclass::text LIKE '%v_idx') AS s"
    for limit in ${LIMITS:-10 100}; do
        ask -c 'SET ivfpq.enable_batched_join = off' -c "SELECT '$1, LIMIT $limit, recall: ' || round(avg(hits) / $limit, 4) FROM (
            SELECT q.id, count(*) FILTER (WHERE found.d <= far * 1.000001) AS hits
            FROM (SELECT * FROM queries WHERE id < 500) AS q JOIN (SELECT id, distance AS far FROM truth WHERE rank = $limit) AS t USING (id)
                CROSS JOIN LATERAL (SELECT v <-> q.v AS d FROM $1 ORDER BY v <-> q.v LIMIT $limit) AS found GROUP BY q.id) AS s"
        printf '\\set n random(500, %d)\nSELECT id FROM %s ORDER BY v <-> (SELECT v FROM queries WHERE id = :n) LIMIT %d;\n' \
            $((number - 1)) "$1" "$limit" >search.sql
        # shellcheck disable=SC2086 # several words
        clients_of search.sql "${SECONDS_EACH:-2}" ${CLIENTS:-1 16 64}
    done
    for ((i = 0; i < ${ROUNDS:-2}; ++i)); do
        ask -c '\timing on' -c "SELECT '$1, LATERAL join: ' || count(key) FROM (SELECT q.id AS query, r.id AS key FROM queries AS q,
            LATERAL (SELECT id FROM $1 AS i ORDER BY i.v <-> q.v LIMIT 10) AS r) AS s"
        ask -c '\timing on' -c "SELECT '$1, knn_join: ' || count(*) FROM knn_join('queries', 'id', 'v', '${1}_v_idx', 'id', 10)"
    done
    ask -c "SELECT service_searches || ' by the service, ' || cpu_searches || ' by the CPU, ' || fallbacks || ' fallbacks'
        FROM (SELECT sum(service_searches) AS service_searches, sum(cpu_searches) AS cpu_searches, sum(fallbacks) AS fallbacks
            FROM pg_stat_pgwarp WHERE indexname::text LIKE '$1%') AS s"
}

if [[ ${MAX_SEARCHES-} ]]; then
    echo "pgwarp.max_searches = $MAX_SEARCHES" >>"$CLUSTER/data/postgresql.conf"
    pg_ctl -D "$CLUSTER/data" -w -l "$CLUSTER/log" restart >/dev/null
    until psql -XAtqc 'SELECT serves FROM pgwarp_service()' postgres 2>/dev/null | grep -q t; do sleep 0.1; done
fi
createdb partitions
ask -c 'CREATE EXTENSION pgwarp' -c 'CREATE TABLE items (id int, v vector)' -c 'CREATE TABLE queries (id int PRIMARY KEY, v vector)'
vectors_of "$DATA/${set}_base.fvecs" 1000000000 | ask -c '\copy items FROM STDIN'
vectors_of "$DATA/${set}_query.fvecs" "$number" | ask -c '\copy queries FROM STDIN'
dims=$(ask -c 'SELECT vector_dims(v) FROM items LIMIT 1')
ask -c "ALTER TABLE items ALTER v TYPE vector($dims)" -c "ALTER TABLE queries ALTER v TYPE vector($dims)" -c 'VACUUM ANALYZE'
ask -c "SET maintenance_work_mem = '2GB'" -c 'CREATE INDEX items_v_idx ON items USING ivfpq (v)'
ask -c 'CREATE VIEW asked AS SELECT * FROM queries WHERE id < 500' -c 'SET ivfpq.target_recall = 1' \
    -c "CREATE TABLE truth AS SELECT query_key AS id, rank, distance FROM knn_join('asked', 'id', 'v', 'items_v_idx', 'id', 100)"
measure items
for parts in ${PARTITIONS:-8 64}; do
    {
        echo "CREATE TABLE hashed_$parts (id int, v vector($dims)) PARTITION BY HASH (id);"
        for ((part = 0; part < parts; ++part)); do
            echo "CREATE TABLE hashed_${parts}_$part PARTITION OF hashed_$parts FOR VALUES WITH (MODULUS $parts, REMAINDER $part);"
        done
        echo "INSERT INTO hashed_$parts SELECT * FROM items;"
        echo "CREATE INDEX hashed_${parts}_v_idx ON hashed_$parts USING ivfpq (v);"
        echo "VACUUM ANALYZE hashed_$parts;"
    } | ask
    measure "hashed_$parts"
done
dropdb partitions
