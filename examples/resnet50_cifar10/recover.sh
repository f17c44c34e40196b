#!/usr/bin/env bash
# Starts again what died, with the same environment and flags as run.sh. Run it in the same directory.
#   recover.sh sched           the scheduler
#   recover.sh worker_3        one worker (or several: recover.sh worker_1 worker_3)
#   recover.sh                 whatever has no process
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

if [ $# -eq 0 ]; then
    # A job that has only just begun has no state yet.
    state=
    [ ! -e "$MS_RECOVERY_PATH/scheduler.db" ] || state=$("$PYTHON" -m recovery status "$MS_RECOVERY_PATH" --json)
    case $state in *'"state": "finished"'*) echo "the job is finished"; exit 0 ;; esac
    for name in sched $(seq -f 'worker_%g' 0 "$((MS_WORKER_NUM - 1))"); do
        runs "$name" || set -- "$@" "$name"
    done
    [ $# -gt 0 ] || { echo "nothing is lost"; exit 0; }
fi
for name in "$@"; do
    case $name in
        sched) start_scheduler ;;
        *) start_worker "$name" ;;
    esac
done
