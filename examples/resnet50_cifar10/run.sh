#!/usr/bin/env bash
# Starts the whole job in the background: the scheduler and the workers. Run it where logs and checkpoints shall lie.
#   bash run.sh --data /path/to/cifar-10-batches-bin              ResNet-50 on CIFAR-10
#   bash run.sh --resize 32 --width 8 --blocks 1,1,1,1            a small one, on a small generated set
#   WORKERS=4 FRAMEWORK=mindspore bash run.sh ...                 another number of workers than 8, MindSpore
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

mkdir -p device
: >device/flags
[ $# -eq 0 ] || printf '%s\n' "$@" >device/flags
echo "start training"
start_scheduler
for ((i = 0; i < MS_WORKER_NUM; i++)); do
    start_worker "worker_$i"
done
