# Refinements on the GPU: recall, queries/s and latency of searches that rank candidates by them there, beside searches
# that visit the rows of all candidates (pgwarp.debug_refine = off), over libpq: a script for the step `queries` of run. GloVe
# (glove) and sentence embeddings (minilm384) are expected in DATA; rows of 768 dimensions are pairs of these, made
# here unless DATA has them (pairs).
#   CLIENTS=1,32,64  SECONDS_EACH=1  REPEAT=1  ROWS=1000000  SETS="pairs glove"
#   FOUR=1     codes of four bits, too
#   SWEEP=1    more candidates than a device selects fast (112), for as many lists: what they cost, and find
# Give the server room for 768 dimensions: SHARED_BUFFERS=8GB HUGE_PAGES=5000.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
rows=${ROWS:-1000000}
say() { printf '== %s (%d s)\n' "$1" $SECONDS; }

# Data set, metric, name of the results, index, more options of pgwarp_bench.
measure() {
    local set=$1 metric=$2 name=$3 index=$4
    shift 4
    # shellcheck disable=SC2153 # DATA is the folder
    "$BENCH" --data "$set" --data-dir "$DATA" --metric "$metric" --queries 1000 --clients "${CLIENTS:-1,32,64}" \
        --seconds "${SECONDS_EACH:-1}" --repeat "${REPEAT:-1}" --keep --json "$RESULTS/$name.json" --extension pgwarp \
        --system refined --index "$index" "$@"
}
both() {
    local refine target
    points=()
    for target in "$@"; do
        for refine in on off; do
            points+=(--set "ivfpq.executor=service; pgwarp.debug_refine=$refine; ivfpq.target_recall=$target")
        done
    done
}
# The table stays, and gets another index: the text of the old one, the new one, its operator class.
other_index() {
    psql -XAtq -v ON_ERROR_STOP=1 bench_refined -c 'DROP INDEX items_v_idx' -c "SET maintenance_work_mem = '4GB'" -c "${2//\{ops\}/$3}" -c 'CHECKPOINT'
    psql -XAtq -v ON_ERROR_STOP=1 bench_refined -v old="$1" -v new="$2" \
        <<<"UPDATE bench_state SET key = replace(key, :'old', :'new');"
}
# How the index is kept, and what a search does: of 300 rows, moved a little.
describe() {
    psql -XAtq -v ON_ERROR_STOP=1 bench_refined <<'SQL'
\timing on
SELECT 'prewarm: ' || pgwarp_prewarm('items_v_idx') || ' lists';
\timing off
SELECT format('m %s, bits %s, refine %s, lists %s; index %s MB, on the device %s MB', i.m, i.bits, i.refine, i.lists,
              i.bytes >> 20, s.bytes >> 20)
FROM ivfpq_info('items_v_idx') AS i, pg_stat_pgwarp AS s WHERE s.indexname = 'items_v_idx';
SQL
    psql -XAtq -v ON_ERROR_STOP=1 bench_refined <<SQL
CREATE OR REPLACE FUNCTION one_scan(query vector, OUT path text, OUT probes int, OUT candidates bigint, OUT ranked bigint)
LANGUAGE plpgsql AS \$\$
BEGIN
    PERFORM id FROM items ORDER BY v $1 query LIMIT 10;
    SELECT s.path, s.probes, s.candidates, s.ranked_rows INTO path, probes, candidates, ranked FROM ivfpq_last_scan() AS s;
END \$\$;
CREATE TEMP TABLE q AS SELECT v * array_fill(1.01::real, ARRAY[vector_dims(v)])::vector AS v FROM items WHERE id % 1000 = 1 LIMIT 300;
$(for target in 0.95 0.99; do for refine in on off; do
    echo "SET ivfpq.executor = service; SET pgwarp.debug_refine = $refine; SET ivfpq.target_recall = $target;
SELECT 'target $target, refine $refine: ' || string_agg(DISTINCT path, ' ') || ', mean of probes ' || round(avg(probes), 1)
    || ', candidates named ' || round(avg(candidates), 1) || ', rows visited ' || round(avg(ranked), 1)
FROM q, LATERAL one_scan(v);"
done; done)
-- With one effort, the same rows as by the CPU, but for codes as far as each other.
CREATE OR REPLACE FUNCTION answer(query vector, executor text, refine text) RETURNS int[] LANGUAGE plpgsql AS \$\$
BEGIN
    PERFORM set_config('ivfpq.probes', '40', true), set_config('ivfpq.candidates', '500', true),
        set_config('pgwarp.debug_refine', refine, true), set_config('ivfpq.executor', executor, true);
    RETURN (SELECT array_agg(id) FROM (SELECT id FROM items ORDER BY v $1 query LIMIT 10) AS s);
END \$\$;
RESET ivfpq.target_recall;
SELECT 'the rows of the CPU, refined on the device: ' || count(*) FILTER (WHERE answer(v, 'cpu', 'off') = answer(v, 'service', 'on'))
    || ', visited: ' || count(*) FILTER (WHERE answer(v, 'cpu', 'off') = answer(v, 'service', 'off')) || ' of ' || count(*)
FROM (SELECT v FROM q LIMIT 100) AS s;
DROP FUNCTION answer, one_scan;
SQL
}

for set in ${SETS:-pairs glove}; do
    if [[ $set == pairs ]]; then
        data=pairs metric=cosine ops=vector_cosine_ops operator='<=>' some=(--rows "$rows")
        if [[ ! -e $DATA/pairs_base.fvecs ]]; then
            say "making $rows x 768"
            "$CLUSTER/pgwarp_bench_data" pairs "$DATA/minilm384" "$rows" "$CLUSTER/pairs"
            data=$CLUSTER/pairs
        fi
        index='CREATE INDEX ON items USING ivfpq (v {ops})'
    else
        data=glove metric=l2 ops=vector_l2_ops operator='<->' some=()
        index='CREATE INDEX ON items USING ivfpq (v {ops}) WITH (refine = int8)'
    fi
    say "$set, as the index chooses"
    both 0.95 0.99
    measure "$data" "$metric" "$set" "$index" "${some[@]}" "${points[@]}"
    describe "$operator"
    if [[ ${SWEEP:-1} == 1 ]]; then
        say "$set, more candidates"
        CLIENTS=1,64 measure "$data" "$metric" "$set-sweep" "$index" "${some[@]}" \
            --set 'ivfpq.executor=service; ivfpq.probes=24; ivfpq.candidates=112,400,1000'
    fi
    if [[ ${FOUR:-1} == 1 ]]; then
        say "$set, codes of four bits"
        four='CREATE INDEX ON items USING ivfpq (v {ops}) WITH (refine = int8, bits = 4)'
        other_index "$index" "$four" "$ops"
        both 0.99
        measure "$data" "$metric" "$set-four" "$four" "${some[@]}" "${points[@]}"
        describe "$operator"
    fi
    dropdb bench_refined
done
say "all done"
