# Recall and queries/s at targets, of queries from outside the table: a script for the step `queries` of run. DATA has
# SET_base and SET_query (bench/fetch).
#   SET=glove-frequent  METRIC=l2  OPTIONS='refine = int8'  KS="1 10 100"  TARGETS="0.90 0.95 0.99"  CLIENTS=16,64  SECONDS_EACH=2  REPEAT=2
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
settings=()
for target in ${TARGETS:-0.90 0.95 0.99}; do
    settings+=(--set "ivfpq.executor=service; ivfpq.target_recall=$target")
done
index="CREATE INDEX ON items USING ivfpq (v {ops})${OPTIONS:+ WITH ($OPTIONS)}"
for k in ${KS:-1 10 100}; do
    echo "== the $k nearest"
    "$BENCH" --data "${SET:-glove-frequent}" --data-dir "$DATA" --metric "${METRIC:-l2}" --queries 2000 --k "$k" \
        --clients "${CLIENTS:-16,64}" --seconds "${SECONDS_EACH:-2}" --repeat "${REPEAT:-2}" --keep --system pgwarp \
        --index "$index" "${settings[@]}"
done
