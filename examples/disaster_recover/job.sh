# shellcheck shell=bash
# Sourced by run.sh and recover.sh: one environment for both, so that what is relaunched finds the same job.
EXAMPLE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$EXAMPLE/../.." && pwd)
FRAMEWORK=${FRAMEWORK:-torch}
case $FRAMEWORK in
    torch) SCRIPT=train.py VENV=.venv ;;
    mindspore) SCRIPT=train_mindspore.py VENV=.venv-mindspore ;;
    *) echo "FRAMEWORK=$FRAMEWORK: must be torch or mindspore" >&2; exit 2 ;;
esac
PYTHON=${PYTHON:-$ROOT/$VENV/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3

export MS_WORKER_NUM=${WORKERS:-${MS_WORKER_NUM:-8}}          # number of workers in the cluster
export MS_SCHED_HOST=${MS_SCHED_HOST:-127.0.0.1}              # where the scheduler listens
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
export MS_ENABLE_RECOVERY=1                                   # disaster recovery on
export MS_RECOVERY_PATH=${MS_RECOVERY_PATH:-./recovery/}      # what is persisted lies here

# start NAME ROLE: start one process in the background; its log is appended to, its pid kept
start() {
    local log=device/$1.log
    [ "$1" != sched ] || log=device/scheduler.log
    mkdir -p device
    [ ! -s "$log" ] || printf '=== %s starts again\n' "$1" >>"$log"
    MS_NODE_ID=$1 MS_ROLE=$2 nohup "$PYTHON" "$EXAMPLE/$SCRIPT" >>"$log" 2>&1 </dev/null &
    echo $! >"device/$1.pid"
    echo "started $1 (pid $!), log: $log"
}

start_scheduler() { start sched MS_SCHED; }
start_worker() { start "$1" MS_WORKER; }
