# Several devices on one GPU, beside one: replicas and shards, queries/s and equal answers: a script for the step
# `queries` of run. DATA has GloVe, or what SET names.
#   SET=glove  CLIENTS=1,16,64  SECONDS_EACH=2  REPEAT=2  ROUNDS=2
#   GROW=2000000   instead of SET: *_base.bvecs in DATA, grown to as many rows
#   DEVICE=0   the GPU
#   KINDS="replicas shards narrow copies"   narrow: shards, with room for 60% of the index on each device. copies: four
#              devices with room for 75% each, which 'auto' makes two parts of, on two devices each. Both take an
#              index of 100 MB and more: a quarter of a device's memory is for models and searches
#   MPS=1      all processes share the GPU by NVIDIA's Multi-Process Service. Without, those of two devices take turns
# One GPU gains nothing by being two: what is looked at is what is lost.
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
set=${SET:-glove} device=${DEVICE:-0}
data=${DATA:?}
if [[ ${GROW-} ]]; then
    base=$(compgen -G "$DATA/*base.bvecs" | head -n 1)
    "$BENCH"_data grow "${base%_base.bvecs}" "$GROW" "$RESULTS/grown" >/dev/null
    set=grown data=$RESULTS
fi
# Servers take it from the environment of the pg_ctl that starts them.
restart() {
    pg_ctl -D "$CLUSTER/data" -w -l "$CLUSTER/log" restart >/dev/null
}
end_mps() {
    local folder=$CUDA_MPS_PIPE_DIRECTORY
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    restart
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$folder nvidia-cuda-mps-control
    tail -n 5 "$folder"/*.log
    rm -rf "$folder"
}
if [[ ${MPS-} ]]; then
    PATH=$PATH:/usr/local/nvidia/bin
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d "$RESULTS/mps.XXXX")
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
    nvidia-cuda-mps-control -d
    trap end_mps EXIT
    restart
fi
index='CREATE INDEX ON items USING ivfpq (v {ops})'
ask() {
    psql -XAtq -v ON_ERROR_STOP=1 bench_pgwarp "$@"
}
configure() {
    printf '%s\n' "$@" >>"$CLUSTER/data/postgresql.conf"
    restart
    local commas=${1//[^,]/}
    local wanted=$((${#commas} + 1))
    until ask -c "SELECT count(*) FILTER (WHERE serves) >= $wanted FROM pgwarp_devices()" 2>/dev/null | grep -q t; do sleep 0.1; done
}
searches() {
    "$BENCH" --data "$set" --data-dir "$data" --queries 2000 --clients "${CLIENTS:-1,16,64}" --seconds "${SECONDS_EACH:-2}" \
        --repeat "${REPEAT:-2}" --keep --json "$RESULTS/$1.json" --system pgwarp --index "$index" --set ivfpq.executor=service
}
# Answers at one effort, of rows that were moved; where lists are.
answers() {
    ask -c "SELECT 'prewarmed: ' || pgwarp_prewarm('items_v_idx')" -c "DROP TABLE IF EXISTS $1" -c 'SET ivfpq.executor = service' \
        -c 'SET ivfpq.probes = 40' -c 'SET ivfpq.candidates = 100' -c 'SET enable_seqscan = off' -c "CREATE TABLE $1 AS SELECT m.id AS q, s.*
            FROM moved AS m, LATERAL (SELECT array_agg(id) AS ids, sum(d) AS distances FROM (SELECT id, items.v <-> m.v AS d FROM items ORDER BY items.v <-> m.v LIMIT 10) AS s) AS s" \
        -c "SELECT d FROM pgwarp_devices() AS d" \
        -c "SELECT place, part, resident_lists, own_lists, lists, bytes, batches FROM pg_stat_pgwarp_devices WHERE indexname = 'items_v_idx'" \
        -c "SELECT service_searches || ' by the service, ' || cpu_searches || ' by the CPU, ' || fallbacks || ' fallbacks'
            FROM pg_stat_pgwarp WHERE indexname = 'items_v_idx'" 2>&1 | grep -v 'does not exist'
    if [[ $1 != one ]]; then
        ask -c "SELECT 'equal answers: ' || count(*) FILTER (WHERE a.ids = b.ids AND cardinality(a.ids) = 10) || ' of ' || count(*) ||
            '; with nearer rows ' || count(*) FILTER (WHERE b.distances < a.distances) || ', with farther ones ' || count(*) FILTER (WHERE b.distances > a.distances)
            FROM one AS a JOIN $1 AS b USING (q)"
    fi
}

echo "== one device, $set"
searches one.0
ask -c "SELECT lists || ' lists, m ' || m || ', ' || pg_size_pretty(list_bytes) FROM ivfpq_info('items_v_idx')"
ask -c 'CREATE TABLE moved AS SELECT i.id, i.v + (o.v - p.v) * array_fill(0.3::real, ARRAY[vector_dims(i.v)])::vector AS v
    FROM items AS i JOIN items AS o ON o.id = i.id + 1 JOIN items AS p ON p.id = i.id + 2 WHERE i.id % 300 = 7 LIMIT 1000'
answers one
bytes=$(ask -c "SELECT bytes FROM pg_stat_pgwarp_devices WHERE indexname = 'items_v_idx'")
for ((round = 1; round <= ${ROUNDS:-2}; ++round)); do
    for kind in ${KINDS:-replicas shards}; do
        placement=shard memory=0 places="$device,$device"
        case $kind in
            replicas) placement=replicate ;;
            narrow) memory="'$((bytes * 8 / 10 / 1048576 + 1))MB'" ;;
            copies) placement=auto memory="'$((bytes / 1048576 + 1))MB'" places="$device,$device,$device,$device" ;;
        esac
        echo "== devices $places, $kind, round $round"
        configure "pgwarp.devices = '$places'" "pgwarp.placement = '$placement'" "pgwarp.device_memory = $memory"
        answers "$kind"
        searches "$kind.$round"
    done
    echo "== one device, round $round"
    configure "pgwarp.devices = '$device'" "pgwarp.placement = 'auto'" 'pgwarp.device_memory = 0'
    searches "one.$round"
done
rm -f "$RESULTS"/grown_*
dropdb bench_pgwarp
