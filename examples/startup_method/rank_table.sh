#!/usr/bin/env bash
# A rank table says which device of which host has which rank; rank 0 starts the scheduler. Run it on every host of the table.
#   bash rank_table.sh RANK_TABLE_FILE [FIRST_RANK]    starts WORKERS_HERE (all) ranks from FIRST_RANK (0) on
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"
[ $# -ge 1 ] || usage "RANK_TABLE_FILE [FIRST_RANK]"

export RANK_TABLE_FILE=$1
export RANK_SIZE=$WORKERS
first=${2:-0}
mkdir -p device
for ((i = 0; i < ${WORKERS_HERE:-WORKERS}; i++)); do
    rank=$((first + i))
    RANK_ID=$rank DEVICE_ID=$i "$PYTHON" "$SCRIPT" >>"device/train$rank.log" 2>&1 &
done
if wait_for_all; then echo "training success"; else echo "training failed"; exit 1; fi
