#!/usr/bin/env bash
# Open MPI starts the workers; rank 0 starts the scheduler. mpirun ends a job as soon as one process fails: start it again by the
# same line, and training goes on from the newest common checkpoint.
#   bash mpirun.sh                                     this host
#   bash mpirun.sh -H HOST_1:4,HOST_2:4                hosts by name; MS_SCHED_HOST must be HOST_1's address
#   bash mpirun.sh --hostfile FILE                     or by a file of lines like `192.168.1.10 slots=4`
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

# MPIRUN_ARGS: further words for mpirun, for example --allow-run-as-root
read -ra further <<<"${MPIRUN_ARGS:-}"
exported=(-x MS_ENABLE_RECOVERY -x MS_RECOVERY_PATH -x MS_SCHED_PORT -x OMP_NUM_THREADS)
[ -z "${MS_SCHED_HOST:-}" ] || exported+=(-x MS_SCHED_HOST)
exec mpirun -n "$WORKERS" "${further[@]}" "$@" "${exported[@]}" "$PYTHON" "$SCRIPT"
