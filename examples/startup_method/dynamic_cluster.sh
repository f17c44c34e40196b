#!/usr/bin/env bash
# No launcher: the same script for every process; the environment says which one it is. Nobody starts again what dies; you may, by the
# same line. Waits for the end of all.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

export MS_WORKER_NUM=$WORKERS
export MS_SCHED_HOST=${MS_SCHED_HOST:-127.0.0.1}
mkdir -p device
for ((i = 0; i < WORKERS; i++)); do
    MS_ROLE=MS_WORKER MS_NODE_ID=$i "$PYTHON" "$SCRIPT" >>"device/worker_$i.log" 2>&1 &
done
MS_ROLE=MS_SCHED MS_NODE_ID=sched "$PYTHON" "$SCRIPT" >>device/scheduler.log 2>&1 &
wait_for_all
