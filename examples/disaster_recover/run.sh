#!/usr/bin/env bash
# Starts the whole job in the background: the workers and the scheduler. Run it where logs and checkpoints shall lie.
#   WORKERS=4 bash run.sh      another number of workers than 8
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

echo "start training"
for ((i = 0; i < MS_WORKER_NUM; i++)); do
    start_worker "worker_$i"
done
start_scheduler
