# shellcheck shell=bash
# Sourced by the others: what every start has in common. The training is the one of ../disaster_recover.
EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ROOT=$(cd "$EXAMPLES/.." && pwd)
FRAMEWORK=${FRAMEWORK:-torch}
case $FRAMEWORK in
    torch) SCRIPT=${SCRIPT:-$EXAMPLES/disaster_recover/train.py} VENV=.venv ;;
    mindspore) SCRIPT=${SCRIPT:-$EXAMPLES/disaster_recover/train_mindspore.py} VENV=.venv-mindspore ;;
    *) echo "FRAMEWORK=$FRAMEWORK: must be torch or mindspore" >&2; exit 2 ;;
esac
PYTHON=${PYTHON:-$ROOT/$VENV/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3

WORKERS=${WORKERS:-8}                                         # of the whole job
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
export MS_ENABLE_RECOVERY=1                                   # disaster recovery on
export MS_RECOVERY_PATH=${MS_RECOVERY_PATH:-./recovery/}      # what is persisted lies here
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# usage ARGUMENTS: end with the line that says how the script is called
usage() { echo "usage: bash $(basename "$0") $1" >&2; exit 2; }

# wait_for_all: wait for what runs in the background; the last failure counts. SIGINT and SIGTERM are handed on.
wait_for_all() {
    local failed=0 pid
    # shellcheck disable=SC2046 # one word a process
    trap 'kill $(jobs -p) 2>/dev/null' INT TERM
    for pid in $(jobs -p); do
        wait "$pid" || failed=$?
    done
    return "$failed"
}
