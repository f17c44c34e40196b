#!/usr/bin/env bash
# One host: the scheduler and all workers. What dies is started again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

exec "$PYTHON" -m recovery msrun --worker_num="$WORKERS" --local_worker_num="$WORKERS" --master_port="$MS_SCHED_PORT" \
    --log_dir=msrun_log --join=True --cluster_time_out=300 "$SCRIPT"
