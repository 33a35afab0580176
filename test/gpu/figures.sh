# The figures of README.md and docs/comparison.md that need a GPU: a script for the step `queries` of run. DATA
# has GloVe (bench/fetch) and NAME_base.bvecs. RESULTS/figures-gpu is for `scripts/figures write`.
#   SECONDS_EACH=2  REPEAT=3  CLIENTS=1,16,64  ROWS=1000000
# shellcheck shell=bash
set -euo pipefail
cd "$CLUSTER"
bash "$CLUSTER/pgwarp/scripts/figures" measure gpu >"$RESULTS/figures-gpu"
cat "$RESULTS/figures-gpu"
