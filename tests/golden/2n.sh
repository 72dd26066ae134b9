#!/bin/bash

# Parameters
#SBATCH --account=p42
#SBATCH --constraint=a100
#SBATCH --cpus-per-task=4
#SBATCH --error=/scratch/sweep/jobs/logs/2n.%j.err
#SBATCH --exclude=node13
#SBATCH --exclusive
#SBATCH --gpus-per-node=2
#SBATCH --job-name=rankwise-2n
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/scratch/sweep/jobs/logs/2n.%j.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --reservation=bench
#SBATCH --signal=B:USR1@60
#SBATCH --time=20

# A Rankwise job. It names everything it needs by path; submit it again whenever you like, from any folder:
#     sbatch THIS_FILE              runs what is not settled yet
#     sbatch THIS_FILE --force      runs all of it again
# Every run below is a step with fresh processes. An attempt leaves in $traces: a trace (.h5) and an exit record
# (.exit.json); its output is in $logs.

set -u
umask o-w  # nothing that everybody may write, whatever the umask was
traces=/scratch/sweep/traces
logs=/scratch/sweep/jobs/logs
python=/opt/rankwise/.venv/bin/python
force=no
[ "${1:-}" = --force ] && force=yes

# The site.
export PYTHONPATH=/opt/rankwise"${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export SLURM_EXPORT_ENV=ALL
command -v module >/dev/null || . /etc/profile
module load CUDA/12.4 || exit 1
module load OpenMPI || exit 1

# One attempt of a run, and what is written down of it.
not_ok=0
stopping=no
child=
job_id=${SLURM_JOB_ID:-${RANKWISE_JOB_ID:-$$}}

say() { echo "rankwise: $*"; }

# The time limit is near (--signal): end the present run, leave the others for another job.
trap 'stopping=yes; [ -n "$child" ] && kill -TERM "$child"' USR1
# Cancelled or preempted: the scheduler knows which, so nothing is written here.
trap '[ -n "$child" ] && kill -TERM "$child" && wait "$child"; exit 143' TERM INT

# Once per node: brings what a failed attempt left in node-local storage to the traces.
collect() {
    srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --mpi=none /opt/rankwise/.venv/bin/python -m hpc.journal collect --stem "$1" --to "$traces"
}

# A run one of whose attempts ended so is not run again.
settled() { grep -qsE '"outcome": "(invalid|ok|oom|rank_fail)"' "$traces/$1".*.exit.json; }

# The next attempt's number, taken by making its file, so that two jobs cannot take the same one.
claim() {
    local number=1
    until (set -o noclobber; printf '{"run_id": "%s", "attempt": %d, "job_id": "%s", "begin_unix_s": %d}\n' \
            "$1" "$number" "$job_id" "$(date +%s)" >"$traces/$1.$number.begin.json") 2>/dev/null; do
        if [ ! -e "$traces/$1.$number.begin.json" ]; then
            say "cannot write to $traces: no run can be recorded there" >&2
            return 1
        fi
        number=$((number + 1))
    done
    echo "$number"
}

# The outcome of an attempt, from its exit status and from what its ranks left.
outcome() {
    local status=$1 stem=$2 error=$3 word
    if [ "$status" -eq 0 ] && [ -e "$stem.h5" ]; then echo ok; return; fi
    if [ "$stopping" = yes ]; then echo timeout; return; fi
    for word in invalid oom rank_fail launch_fail; do
        if grep -qsF "\"outcome\": \"$word\"" "$stem".rank*.json; then echo "$word"; return; fi
    done
    if grep -qsiE 'oom.kill|out of memory|exceeded memory limit' "$error"; then echo oom; return; fi
    # A trace was recovered only where a step was made.
    if [ -e "$stem.h5" ]; then echo rank_fail; else echo launch_fail; fi
}

# run ID COMMAND…: one run, as a step with fresh processes, and its exit record.
run() {
    local run_id=$1 attempt stem log begin status word
    shift
    if [ "$force" = no ] && settled "$run_id"; then
        say "$run_id is settled, passed over (--force runs it again)"
        return
    fi
    if [ "$stopping" = yes ]; then
        say "$run_id is left for another job: the time limit is near"
        not_ok=$((not_ok + 1))
        return
    fi
    attempt=$(claim "$run_id") || exit 1
    stem=$traces/$run_id.$attempt log=$logs/$run_id.$attempt begin=$(date +%s)
    "$@" --attempt "$attempt" --script "$0" >"$log.out" 2>"$log.err" &
    child=$!
    wait "$child"
    status=$?
    # A trapped signal ends the first wait early; the launcher's own status comes from the last.
    while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
    child=
    if [ ! -e "$stem.h5" ]; then
        collect "$run_id.$attempt" >>"$log.out" 2>>"$log.err"
        "$python" -m parse.recover "$traces" --stem "$run_id.$attempt" >>"$log.out" 2>>"$log.err"
    fi
    word=$(outcome "$status" "$stem" "$log.err")
    [ "$word" = ok ] || not_ok=$((not_ok + 1))
    printf '{\n "run_id": "%s",\n "attempt": %d,\n "outcome": "%s",\n "exit_status": %d,\n "job_id": "%s",\n "restart_count": %d,\n "nodelist": "%s",\n "begin_unix_s": %d,\n "end_unix_s": %d\n}\n' \
        "$run_id" "$attempt" "$word" "$status" "$job_id" "${SLURM_RESTART_COUNT:-0}" \
        "${SLURM_JOB_NODELIST:-$(hostname)}" "$begin" "$(date +%s)" >"$stem.exit.json.part" &&
        mv "$stem.exit.json.part" "$stem.exit.json" || say "cannot write $stem.exit.json" >&2
    say "$run_id attempt $attempt: $word"
}

# The runs, in order. The next one starts whatever became of the last.
run 2n2g_torch-ddp_mlp_b8_fp32_e0eb17c2ae_r1 \
    env NCCL_ALGO=Ring srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --distribution=block --mpi=pmix --kill-on-bad-exit=1 /opt/rankwise/.venv/bin/python -m hpc.rank \
    /scratch/sweep/jobs/runs/2n2g_torch-ddp_mlp_b8_fp32_e0eb17c2ae_r1.json --traces \
    /scratch/sweep/traces
run 2n2g_torch-ddp_mlp_b8_fp32_5761c9b325_r2 \
    srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --distribution=block --mpi=pmix --kill-on-bad-exit=1 /opt/rankwise/.venv/bin/python -m hpc.rank \
    /scratch/sweep/jobs/runs/2n2g_torch-ddp_mlp_b8_fp32_5761c9b325_r2.json --traces \
    /scratch/sweep/traces

[ "$not_ok" -eq 0 ] || say "$not_ok of the runs above did not end ok; their output is in $logs"
[ "$not_ok" -eq 0 ]
