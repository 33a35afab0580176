# Lists and m of an index: recall, queries/s by sessions and through the service, for several numbers of each, beside
# what the index chooses by itself: a script for the step `queries` of run. DATA has the sets; rows of 768 and 1,536
# dimensions are pairs of minilm384's (pairs), and pairs of pairs (fours), made here. For 96 dimensions see OPTIONS
# of large.sh.
#   TABLES="minilm384:100000 pairs:100000 pairs:1000000 fours:100000 sift128:200000"   sets and rows
#   FACTORS="0.5 2 4"   lists, times those that the index chooses
#   MS="0.5 2"            m, times the one that the index chooses, with its lists
#   CLIENTS=64  SECONDS_EACH=1
# Give the server room for them: SHARED_BUFFERS=12GB HUGE_PAGES=7000.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
say() { printf '== %s (%d s)\n' "$1" $SECONDS; }
ask() { psql -XAtq -v ON_ERROR_STOP=1 bench_chosen "$@"; }
with() { echo "CREATE INDEX ON items USING ivfpq (v {ops})${1:+ WITH ($1)}"; }

# Options of the index; `set`, `rows`, `metric` and `loaded`, the options of the index that is there, are the caller's.
measure() {
    if [[ $loaded != none && $1 != "$loaded" ]]; then
        ask -c 'DROP INDEX items_v_idx' -c "SET maintenance_work_mem = '8GB'" \
            -c "$(with "$1" | sed "s/{ops}/vector_${metric}_ops/")" -c CHECKPOINT
        ask -v old="$(with "$loaded")" -v new="$(with "$1")" <<<"UPDATE bench_state SET key = replace(key, :'old', :'new');"
    fi
    loaded=$1
    "$BENCH" --data "$set" --data-dir "$DATA" --rows "$rows" --metric "$metric" --queries 500 --clients 1 --seconds "${SECONDS_EACH:-1}" \
        --repeat 1 --keep --extension pgwarp --build-set "maintenance_work_mem=8GB" --system chosen --index "$(with "$1")" \
        --set 'ivfpq.executor=cpu; ivfpq.target_recall=0.95,0.99'
    ask -c "SELECT format('%s of %s rows: lists %s, m %s, bits %s, refine %s, %s MB; resident %s', '${set##*/}', $rows, lists, m, bits, refine,
        bytes >> 20, pgwarp_prewarm('items_v_idx')) FROM ivfpq_info('items_v_idx')"
    "$BENCH" --data "$set" --data-dir "$DATA" --rows "$rows" --metric "$metric" --queries 500 --clients "${CLIENTS:-64}" --seconds "${SECONDS_EACH:-1}" \
        --repeat 1 --keep --extension pgwarp --build-set "maintenance_work_mem=8GB" --system chosen --index "$(with "$1")" \
        --set 'ivfpq.executor=service; ivfpq.target_recall=0.95,0.99'
}

for table in ${TABLES:-minilm384:100000 pairs:100000 pairs:1000000 fours:100000 sift128:200000}; do
    set=${table%:*} rows=${table#*:} metric=cosine loaded=none
    if [[ $set == sift128 || $set == glove ]]; then metric=l2; fi
    if [[ $set == pairs || $set == fours ]]; then
        if [[ ! -e pairs_base.fvecs || $(cat pairs_rows) -lt $rows ]]; then
            "$CLUSTER/pgwarp_bench_data" pairs "$DATA/minilm384" "$rows" "$CLUSTER/pairs"
            echo "$rows" >pairs_rows
        fi
        if [[ $set == fours && ! -e fours_base.fvecs ]]; then
            "$CLUSTER/pgwarp_bench_data" pairs "$CLUSTER/pairs" "$rows" "$CLUSTER/fours"
        fi
        set=$CLUSTER/$set
    fi
    say "$table, as the index chooses"
    measure ''
    IFS='|' read -r lists m < <(ask -c "SELECT lists, m FROM ivfpq_info('items_v_idx')")
    for factor in ${FACTORS:-0.5 2 4}; do
        more=$(awk "BEGIN { printf \"%d\", $lists * $factor }")
        say "$table, lists = $more"
        measure "lists = $more"
    done
    for factor in ${MS:-0.5 2}; do
        more=$(awk "BEGIN { printf \"%d\", $m * $factor }")
        say "$table, m = $more"
        measure "m = $more"
    done
    dropdb bench_chosen
done
say 'all done'
