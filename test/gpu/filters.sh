# How fast, and with which recall, queries with a condition are answered through the service: a script
# for the step `queries` of run. GloVe is expected in DATA, but for tenants. The peer is measured where it was packed.
#   PARTS="attributes far tenants peer"   what to measure
#   CLIENTS=1,16,64  SECONDS_EACH=2  REPEAT=1  ASKED=1000   clients, and queries of the first two parts
#   TENANTS=1000  ROWS=2000000   the table of tenants, fifty times as many rows of 96 dimensions, made of the
#                           *_base.bvecs in DATA (see grown_rows.sh): 100,000,000 take 45 GB of disk, and
#                           SHARED_BUFFERS=50GB HUGE_PAGES=26500 for run. Its queries are those of the set
# shellcheck shell=bash
set -euo pipefail
parts=" ${PARTS:-attributes far tenants peer} "
wants() {
    [[ $parts == *" $1 "* ]]
}
cd "$CLUSTER"
common=(--data glove --data-dir "$DATA" --queries "${ASKED:-1000}" --seconds "${SECONDS_EACH:-2}"
    --repeat "${REPEAT:-1}" --setup 'ALTER TABLE items ADD tenth int GENERATED ALWAYS AS (id % 10) STORED'
    --setup 'ALTER TABLE items ADD hundredth int GENERATED ALWAYS AS (id % 100) STORED'
    --setup 'ALTER TABLE items ADD thousandth int GENERATED ALWAYS AS (id % 1000) STORED')
plain='CREATE INDEX ON items USING ivfpq (v {ops})'
clients=${CLIENTS:-1,16,64}
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 "$@"
}

if wants attributes; then
    echo '== attributes in the index'
    "$BENCH" "${common[@]}" --clients "$clients" --json "$RESULTS/attributes.json" \
        --filter 'tenth = 3' --filter 'hundredth = 3' --filter 'thousandth = 3' --filter true \
        --system attributes --extension pgwarp \
        --index 'CREATE INDEX ON items USING ivfpq (v {ops}, tenth, hundredth, thousandth)'
    echo '== what an attribute costs where there is no condition'
    "$BENCH" "${common[@]}" --repeat 3 --builds 3 --clients "$clients" --json "$RESULTS/cost.json" --extension pgwarp \
        --system none --index "$plain" --system one --index 'CREATE INDEX ON items USING ivfpq (v {ops}, tenth)' --keep
    for columns in v 'v, tenth' v 'v, tenth'; do
        psql -XAtq -v ON_ERROR_STOP=1 bench_one -c 'SET client_min_messages = debug1' -c '\timing on' \
            -c "CREATE INDEX ON items USING ivfpq ($columns)" 2>&1 | sed "s/^Time/($columns) built/"
    done
    dropdb bench_one && dropdb bench_none
fi
if wants peer; then
    echo '== conditions that are not in the index, and pgvector'
    "$BENCH" "${common[@]}" --queries 300 --clients 1 --json "$RESULTS/peer.json" --build-set 'maintenance_work_mem=8GB' \
        --filter 'tenth = 3' --filter 'hundredth = 3' --system 'not in the index' --extension pgwarp --index "$plain" \
        --system 'pgvector hnsw' --extension vector --index 'CREATE INDEX ON items USING hnsw (v {ops})' \
        --reach 'hnsw.iterative_scan=relaxed_order; hnsw.ef_search=10..1000'
fi
if wants far; then
    echo '== a condition that holds only far from the query'
    # shellcheck disable=SC2016 # $2 is the query's
    "$BENCH" --data glove --data-dir "$DATA" --queries 100 --clients "$clients" --seconds "${SECONDS_EACH:-2}" \
        --repeat "${REPEAT:-1}" --farthest 0.01 --filter 'far = $2; $2 = query' --json "$RESULTS/far.json" \
        --system far --extension pgwarp --index 'CREATE INDEX ON items USING ivfpq (v {ops}, far)'
fi

if wants tenants; then
    rows=${ROWS:-2000000} tenants=${TENANTS:-1000}
    echo "== 50 x $rows x 96, $tenants tenants of equal size"
    # shellcheck source=test/gpu/grown_rows.sh
    source "$CLUSTER/pgwarp/test/gpu/grown_rows.sh"
    make_large_table "$rows" "$tenants"
    asked=$(ask -c 'SELECT count(*) FROM queries')
    # Entries of 73 bytes take 9/16 of it; with less, the build spills and takes several times as long.
    for columns in v 'v, tenant_id' v 'v, tenant_id'; do
        ask -c "SET maintenance_work_mem = '24GB'" -c 'DROP INDEX IF EXISTS items_v' -c 'SET client_min_messages = debug1' -c '\timing on' \
            -c "CREATE INDEX items_v ON items USING ivfpq ($columns)" 2>&1 | sed "s/^Time/($columns) built/"
    done
    ask -c "SELECT pg_size_pretty(pg_relation_size('items_v'))" \
        -c "SELECT lists || ' lists, ' || probes || ' probes, ' || candidates || ' candidates' FROM ivfpq_info('items_v')" | paste -sd' '
    started=$SECONDS
    echo "prewarmed: $(ask -c "SELECT pgwarp_prewarm('items_v') || ' lists'") in $((SECONDS - started)) s"
    cat >search.sql <<'SQL'
\set n random(0, QUERIES - 1)
\set t random(0, TENANTS - 1)
SELECT id FROM items WHERE tenant_id = :t ORDER BY v <-> (SELECT v FROM queries WHERE id = :n) LIMIT 10;
SQL
    sed -i "s/TENANTS/$tenants/; s/QUERIES/$asked/" search.sql
    ask -c 'EXPLAIN SELECT id FROM items WHERE tenant_id = 5 ORDER BY v <-> (SELECT v FROM queries WHERE id = 7) LIMIT 10'
    # shellcheck disable=SC2086 # several words
    clients_of search.sql 4 ${clients//,/ } 64 64
    ask -c "SELECT service_searches || ' by the service, ' || fallbacks || ' fallbacks' FROM pg_stat_pgwarp WHERE indexname = 'items_v'"
    ask -c 'SET enable_seqscan = off' -c 'SELECT FROM items WHERE tenant_id = 5 ORDER BY v <-> (SELECT v FROM queries WHERE id = 7) LIMIT 10' \
        -c 'SELECT l FROM ivfpq_last_scan() AS l' | tail -n 1
    # Rows that are truly among the ten are no farther than the last of the answer.
    ask -c 'SET enable_seqscan = off' -c "CREATE TABLE answers AS SELECT q.id AS query, q.tenant_id, q.v, f.id, f.d
        FROM (SELECT *, id * 7919 % $tenants AS tenant_id FROM queries WHERE id < 300) AS q CROSS JOIN LATERAL (SELECT id, items.v <-> q.v AS d FROM items
            WHERE items.tenant_id = q.tenant_id ORDER BY items.v <-> q.v LIMIT 10) AS f" -c 'ANALYZE answers'
    ask -c 'SET max_parallel_workers_per_gather = 15' -c 'SET enable_indexscan = off' -c 'SET enable_mergejoin = off' -c "
        WITH asked AS (SELECT query, tenant_id, v, max(d) AS far FROM answers GROUP BY 1, 2, 3),
            near AS MATERIALIZED (SELECT query, i.id, i.v <-> a.v AS d FROM items AS i JOIN asked AS a USING (tenant_id)
                WHERE i.v <-> a.v <= far * 1.000001),
            truth AS (SELECT query, d AS tenth FROM (SELECT *, row_number() OVER (PARTITION BY query ORDER BY d) AS r FROM near) AS s
                WHERE r = 10)
        SELECT 'recall@10: ' || round(count(*) FILTER (WHERE d <= tenth * 1.000001) / (10.0 * (SELECT count(*) FROM asked)), 4) ||
            ' of ' || (SELECT count(*) FROM asked) || ' queries' FROM answers JOIN truth USING (query)"
fi
