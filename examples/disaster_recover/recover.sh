#!/usr/bin/env bash
# Starts again what died, with the same environment as run.sh. Run it in the same directory.
#   recover.sh sched           the scheduler
#   recover.sh worker_3        one worker (or several: recover.sh worker_1 worker_3)
#   recover.sh                 whatever is lost, by the stored node table
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

if [ $# -eq 0 ]; then
    mapfile -t lost < <("$PYTHON" "$EXAMPLE/lost.py" "$MS_RECOVERY_PATH")
    [ ${#lost[@]} -gt 0 ] || { echo "nothing is lost"; exit 0; }
    set -- "${lost[@]}"
fi
for name in "$@"; do
    case $name in
        sched) start_scheduler ;;
        *) start_worker "$name" ;;
    esac
done
