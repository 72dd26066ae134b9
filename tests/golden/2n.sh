#!/bin/bash

# Parameters
#SBATCH --account=p42
#SBATCH --constraint=a100
#SBATCH --cpus-per-task=4
#SBATCH --error=/scratch/sweep/jobs/logs/2n.%j.err
#SBATCH --exclude=node13
#SBATCH --exclusive
#SBATCH --gpus-per-node=2
#SBATCH --job-name=rankwise-2n-274bd632
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/scratch/sweep/jobs/logs/2n.%j.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation=bench
#SBATCH --signal=B:USR1@60
#SBATCH --time=20

# A Rankwise job. It names everything it needs by path; submit it again whenever you like, from any folder:
#     sbatch THIS_FILE              runs what is not settled yet
#     sbatch THIS_FILE --force      runs all of it again
# Every run below is a step with fresh processes. An attempt leaves in $traces: a trace (.h5) and an exit record
# (.exit.json) with its outcome and the evidence; its output is in $logs.

set -u
umask o-w  # nothing that everybody may write, whatever the umask was
traces=/scratch/sweep/traces
logs=/scratch/sweep/jobs/logs
python=/opt/rankwise/.venv/bin/python
force=no
[ "${1:-}" = --force ] && force=yes
copy_s=10           # what ranks have recorded is copied from their nodes so often; 0: never
start_limit_s=600   # a run that makes no step for so long hangs: at first,
hang_steps=10       # then for so many times its median step
hang_extra_s=60     # and so long on top

# Submitted from inside a step of another job, it has the binding of that, which every srun would take for its own.
[ -z "${SLURM_STEP_ID:-}" ] || unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}"

# The site.
export PYTHONPATH=/opt/rankwise"${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export SLURM_EXPORT_ENV=ALL
set +u  # module systems read variables that nobody set
command -v module >/dev/null || . /etc/profile
module load CUDA/12.4 || exit 1
module load OpenMPI || exit 1
set -u

# One attempt of a run, and what is written down of it.
not_ok=0
stopping=  # the signal after which no further run is started
child=     # the launcher's process while a step runs
stem=      # TRACES/<run id>.<attempt> while that has no exit record
restarts=${SLURM_RESTART_COUNT:-0}
job_id=${SLURM_JOB_ID:-${RANKWISE_JOB_ID:-local-$HOSTNAME-$$-0}}

say() { printf 'rankwise %(%F %T)T: %s\n' -1 "$*"; }

# USR1 comes before the time limit and before a preemption, TERM when the job is ended. Noted before anything else.
told() {
    [ -z "$stem" ] || [ -e "$stem.signal" ] || printf 'SIG%s at %(%F %T)T\n' "$1" -1 >"$stem.signal"
    stopping=$1
    say "SIG$1: no further run is started${child:+, the present one is ended}"
    [ -z "$child" ] || end_step
}
trap 'told USR1' USR1
trap 'told TERM' TERM
trap 'told INT' INT

# Tells the launcher to end. It has ten seconds for that; `tail` is there to wait for it and no longer.
end_step() {
    kill -TERM "$child" 2>/dev/null
    (
        timeout 10 tail --pid="$child" -s 0.1 -f /dev/null && exit
        say "the launcher has not ended 10 s after SIGTERM: SIGKILL"
        kill -KILL "$child" 2>/dev/null
    ) &
    disown
}

# A step needs the controller. Where that is away the runs wait for it, rather than fail one after the other.
await_controller() {
    local answer said=no
    while [ -n "${SLURM_JOB_ID:-}" ] && [ -z "$stopping" ]; do
        answer=$(timeout 60 squeue -h -j "$SLURM_JOB_ID" -o %T 2>&1 </dev/null)
        case $?,$answer in 124,* | *"Unable to contact"* | *"timed out"*) ;; *) return ;; esac
        [ "$said" = yes ] || say "waits for slurmctld, which does not answer: $answer"
        said=yes
        sleep 5
    done
}

# Once per node: brings what a failed attempt left in node-local storage to the traces.
collect() {
    timeout -k 5 "$([ -z "$stopping" ] && echo 120 || echo 20)" srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --mpi=none /opt/rankwise/.venv/bin/python -m hpc.journal collect \
        --stem "$1" --to "$traces"
}

# What the ranks of attempt $1 left becomes a trace. A job that is being ended starts no step: this node's alone is left.
bring() {
    case $stopping in
        TERM | INT) "$python" -m hpc.journal collect --stem "$1" --to "$traces" ;;
        *) await_controller; collect "$1" ;;
    esac
    "$python" -m parse.recover "$traces" --stem "$1"
}

# Waits for the launcher; a signal to this script ends a wait early, and the last one tells the launcher's own status.
wait_for_step() {
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    wait "$child"
}

# What scontrol says of job $1; nothing where it does not answer.
ask() { timeout 10 scontrol -o show job "$1" 2>/dev/null </dev/null; }

# A job that ends while it is about to be preempted has ended; one that waits to be taken away may go back to the queue.
await_preemption() {
    case $(ask "$job_id") in *PreemptTime=[0-9]*) ;; *) return ;; esac
    say "waits for Slurm to preempt this job"
    while [ "$stopping" = USR1 ]; do sleep 1; done
    exit 143
}

# Writes the exit record, by the rules of docs/outcomes.md. Where Python cannot, the shell does.
record() {
    local attempt=${stem##*.} text outcome=launch_fail
    local known=(--exit-status "$1" --trace "$trace" --error "$log.err" --nodelist "$nodelist" --begin-unix-s "$begin")
    [ -z "$stopping" ] || [ -z "${SLURM_JOB_ID:-}" ] || known+=(--job-text "$(ask "$job_id")")
    if text=$("$python" -m hpc.evidence decide --traces "$traces" --stem "${stem##*/}" --job-id "$job_id" \
            --restarts "$restarts" "${known[@]}" </dev/null); then
        say "${stem##*/}: $text"
        [ "${text%%:*}" = ok ]
        return
    fi
    if [ -n "$stopping" ]; then
        say "${stem##*/}: no record yet: why this job was told to end, the scheduler will know"
        return 1
    fi
    [ "$1" -ne 0 ] || [ "$trace" = no ] || outcome=ok
    printf '{\n "run_id": "%s",\n "attempt": %d,\n "outcome": "%s",\n "exit_status": %d,\n "job_id": "%s",\n "restart_count": %d,\n "nodelist": "%s",\n "begin_unix_s": %d,\n "end_unix_s": %d,\n "evidence": ["%s"]\n}\n' \
        "$run_id" "$attempt" "$outcome" "$1" "$job_id" "$restarts" "$nodelist" "$begin" "$(date +%s)" \
        "the launcher ended with exit status $1; python -m hpc.evidence failed, so the job script wrote this itself" \
        >"$stem.exit.json.part" && mv "$stem.exit.json.part" "$stem.exit.json" || {
        say "cannot write $stem.exit.json: who follows the sweep, or the next job, will"
        rm -f "$stem.exit.json.part"
        return 1
    }
    say "${stem##*/}: $outcome: python -m hpc.evidence failed"
    [ "$outcome" = ok ]
}

# run ID COMMAND…: one run, as a step with fresh processes, and its exit record.
run() {
    local run_id=$1 attempt log begin watchdog status trace=no nodelist=${nodes:-${SLURM_JOB_NODELIST:-$HOSTNAME}}
    shift
    await_controller
    take "$run_id" || return
    begin=$(date +%s) log=$logs/$run_id.$attempt
    stem=$traces/$run_id.$attempt
    say "${stem##*/}: begins on $nodelist"
    "$@" --attempt "$attempt" --script "$0" --copy-s "$copy_s" >>"$log.out" 2>>"$log.err" &
    child=$!
    [ -z "$stopping" ] || end_step  # told just now
    "$python" -m hpc.watchdog --traces "$traces" --stem "$run_id.$attempt" --launcher "$child" --copy-s "$copy_s" \
        --start-limit-s "$start_limit_s" --hang-steps "$hang_steps" --hang-extra-s "$hang_extra_s" 2>>"$log.err" &
    watchdog=$!
    disown "$watchdog"
    wait_for_step
    status=$?
    child=
    kill "$watchdog" 2>/dev/null
    [ ! -e "$stem.h5" ] || trace=yes
    case $stopping in
        TERM | INT)  # little time is left: the record first
            record "$status"
            [ "$trace $status" = "yes 0" ] || bring "$run_id.$attempt" >>"$log.out" 2>>"$log.err" </dev/null
            exit 143 ;;
    esac
    [ "$trace $status" = "yes 0" ] || bring "$run_id.$attempt" >>"$log.out" 2>>"$log.err" </dev/null
    record "$status" || not_ok=$((not_ok + 1))
    stem=
    case $stopping in TERM | INT) exit 143 ;; esac
}

# Which runs are to be done here, so that none is done twice.

# Whether file $1 is an exit record to the end: what a power cut leaves of one is empty, zeros, or its beginning.
recorded() { [ -f "$1" ] && tail -c 2 "$1" | grep -qsa '}$'; }

# A run one of whose attempts ended so is not run again, unless somebody asked for it after that attempt. --force asks
# for all; what this very job has settled since stays so, for it may have been requeued.
settled() {
    local record
    for record in "$traces/$1".*.exit.json; do
        grep -qsE '"outcome": "(invalid|ok|oom|rank_fail)"' "$record" && recorded "$record" || continue
        [ ! -e "${record%.exit.json}.again" ] || continue
        [ "$force" = yes ] || return 0
        ! grep -qsF "\"job_id\": \"$job_id\"" "$record" || return 0
    done
    return 1
}

# Whether job $1 is there still. One that cannot be asked about is taken to be.
lives() {
    local local_id=${1%-*} process answer tries
    if [ "$local_id" != "${local_id#local-}" ]; then  # local-HOST-PROCESS-NUMBER; NUMBER is 0 where started by hand
        [ "${local_id%-*}" = "local-$HOSTNAME" ] || return 0
        process=${local_id##*-}
        if [ "${1##*-}" != 0 ] && [ -r "/proc/$process/environ" ]; then  # a process's number may be another's by now
            grep -qzxF "RANKWISE_JOB_ID=$1" "/proc/$process/environ"
            return
        fi
        answer=$(LC_ALL=C kill -0 "$process" 2>&1) && return
        case $answer in *"not permitted"*) return 0 ;; *) return 1 ;; esac  # another user's lives
    fi
    for tries in 1 2 3; do
        if answer=$(timeout 60 squeue -h -j "$1" -o %T 2>&1 </dev/null); then
            [ -n "$answer" ]
            return
        fi
        case $answer in *"Invalid job id"*) return 1 ;; esac
        say "is job $1 there still? squeue: ${answer:-no answer}"
        [ "$tries" -eq 3 ] || sleep 5
    done
}

# Of attempts that a job left open: makes traces of what their ranks left, then writes the records.
close_attempts() {
    local name text
    while read -r name; do
        bring "$name" >>"$logs/$name.out" 2>>"$logs/$name.err" </dev/null
    done < <("$python" -m hpc.evidence list --traces "$traces" "$@" </dev/null)
    while read -r name text; do
        say "$name: $text"
    done < <("$python" -m hpc.evidence close --traces "$traces" --logs "$logs" "$@" </dev/null)
}

# Whether another job is at the run: it began an attempt, has not ended it, and lives. 2 where attempts of jobs that have
# ended were closed just now: the run may be settled by what they left.
elsewhere() {
    local begun other answer=1
    for begun in "$traces/$1".*.begin.json; do
        [ -e "$begun" ] && ! recorded "${begun%.begin.json}.exit.json" || continue
        other=$(sed -n 's/.*"job_id": "\([^"]*\)".*/\1/p' "$begun")
        [ -n "$other" ] && [ "$other" != "$job_id" ] || continue
        if lives "$other"; then
            say "$1 is left to job $other, which began it (${begun##*/}) and may still be at it"
            return 0
        fi
        close_attempts --job-id "$other" --job-text "$(ask "$other")"
        ! recorded "${begun%.begin.json}.exit.json" || answer=2
    done
    return $answer
}

# Takes the next attempt's number by making its file, so that two jobs cannot take the same one. False where the run is
# not to be done here.
take() {
    local text
    while :; do
        attempt=1  # looked for first: what another job takes or ends meanwhile makes this one look again
        while [ -e "$traces/$1.$attempt.begin.json" ]; do attempt=$((attempt + 1)); done
        if settled "$1"; then
            say "$1 is settled, passed over (--force runs it again)"
            return 1
        fi
        if [ -n "$stopping" ]; then
            say "$1 is left for another job: this one was told to end (SIG$stopping)"
            not_ok=$((not_ok + 1))
            return 1
        fi
        elsewhere "$1"
        case $? in
            0) not_ok=$((not_ok + 1)); return 1 ;;
            2) continue ;;
        esac
        printf -v text '{"run_id": "%s", "attempt": %d, "job_id": "%s", "restart_count": %d, "nodelist": "%s", "begin_unix_s": %d}' \
            "$1" "$attempt" "$job_id" "$restarts" "$nodelist" "$(date +%s)"
        (set -o noclobber; { echo "$text" || exit 3; } >"$traces/$1.$attempt.begin.json") 2>/dev/null
        case $? in
            0) return 0 ;;
            3) rm -f "$traces/$1.$attempt.begin.json" ;;  # ours, and the disk is full: no other job has this number
        esac
        if [ ! -e "$traces/$1.$attempt.begin.json" ]; then
            say "cannot write to $traces: no run can be recorded there"
            exit 1
        fi
    done
}

if [ "$restarts" -gt 0 ]; then
    say "job $job_id was requeued: this is its life number $((restarts + 1))"
    close_attempts --job-id "$job_id" --restarts "$restarts"
fi

# The runs, in order. The next one starts whatever became of the last.
{  # bash reads to the end of this before it does any of it: the file may be edited while they run
run 2n2g_torch-ddp_mlp_b8_fp32_e0eb17c2ae_r1 \
    env NCCL_ALGO=Ring SLURM_PMIX_FENCE=ring srun --nodes=2 --ntasks=4 --ntasks-per-node=2 \
    --cpus-per-task=4 --gpus-per-node=2 --distribution=block --mpi=pmix --kill-on-bad-exit=1 \
    /opt/rankwise/.venv/bin/python -m hpc.rank \
    /scratch/sweep/jobs/runs/2n2g_torch-ddp_mlp_b8_fp32_e0eb17c2ae_r1.json --traces \
    /scratch/sweep/traces
run 2n2g_torch-ddp_mlp_b8_fp32_5761c9b325_r2 \
    env SLURM_PMIX_FENCE=ring srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4 \
    --gpus-per-node=2 --distribution=block --mpi=pmix --kill-on-bad-exit=1 \
    /opt/rankwise/.venv/bin/python -m hpc.rank \
    /scratch/sweep/jobs/runs/2n2g_torch-ddp_mlp_b8_fp32_5761c9b325_r2.json --traces \
    /scratch/sweep/traces

[ "$stopping" != USR1 ] || await_preemption
[ "$not_ok" -eq 0 ] || say "$not_ok of the runs above did not end ok; their output is in $logs"
[ "$not_ok" -eq 0 ]
exit
}
