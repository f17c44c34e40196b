#!/usr/bin/env bash
# Two hosts, node 2: the second half of the workers.
#   bash msrun_2.sh NODE_1_ADDRESS
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"
[ $# -eq 1 ] || usage NODE_1_ADDRESS

exec "$PYTHON" -m recovery msrun --worker_num="$WORKERS" --local_worker_num="$((WORKERS / 2))" --master_addr="$1" \
    --master_port="$MS_SCHED_PORT" --node_rank=1 --log_dir=msrun_log_2 --join=True --cluster_time_out=300 "$SCRIPT"
