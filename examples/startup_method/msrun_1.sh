#!/usr/bin/env bash
# Two hosts, node 1: the scheduler and the first half of the workers.
#   bash msrun_1.sh NODE_1_ADDRESS
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"
[ $# -eq 1 ] || usage NODE_1_ADDRESS

exec "$PYTHON" -m recovery msrun --worker_num="$WORKERS" --local_worker_num="$((WORKERS / 2))" --master_addr="$1" \
    --master_port="$MS_SCHED_PORT" --node_rank=0 --log_dir=msrun_log_1 --join=True --cluster_time_out=300 "$SCRIPT"
