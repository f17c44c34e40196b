# shellcheck shell=bash
# Sourced by run.sh and recover.sh: one environment for both, so that what is relaunched finds the same job.
EXAMPLE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$EXAMPLE/../.." && pwd)
FRAMEWORK=${FRAMEWORK:-torch}
case $FRAMEWORK in
    torch) VENV=.venv ;;
    mindspore) VENV=.venv-mindspore ;;
    *) echo "FRAMEWORK=$FRAMEWORK: must be torch or mindspore" >&2; exit 2 ;;
esac
SCRIPT=train_$FRAMEWORK.py
PYTHON=${PYTHON:-$ROOT/$VENV/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3

# number of workers in the cluster, and where the scheduler listens
export MS_WORKER_NUM=${WORKERS:-${MS_WORKER_NUM:-8}}
export MS_SCHED_HOST=${MS_SCHED_HOST:-127.0.0.1}
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
# disaster recovery on; what is persisted lies here
export MS_ENABLE_RECOVERY=1
export MS_RECOVERY_PATH=${MS_RECOVERY_PATH:-./recovery/}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# start NAME ROLE: start one process in the background with the flags of run.sh; its log is appended to, its pid kept
start() {
    local log=device/$1.log flags
    [ "$1" != sched ] || log=device/scheduler.log
    mapfile -t flags <device/flags
    [ ! -s "$log" ] || printf '=== %s starts again\n' "$1" >>"$log"
    MS_NODE_ID=$1 MS_ROLE=$2 nohup "$PYTHON" "$EXAMPLE/$SCRIPT" "${flags[@]}" >>"$log" 2>&1 </dev/null &
    echo $! >"device/$1.pid"
    echo "started $1 (pid $!), log: $log"
}

start_scheduler() { start sched MS_SCHED; }
start_worker() { start "$1" MS_WORKER; }

# runs NAME: is the process that was started last under this name alive?
runs() {
    local pid
    pid=$(cat "device/$1.pid" 2>/dev/null) && grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/status"
}
