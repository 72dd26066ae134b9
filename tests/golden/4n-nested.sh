#!/bin/bash
# torch-ddp mlp, batch size 8 per device, fp32, weak scaling, placement nested, NCCL_ALGO=Ring, 5 steps after 5: 5 runs
# on 1n2g, 5 runs on 2n2g, 5 runs on 4n2g
#SBATCH --account=p42
#SBATCH --constraint=a100
#SBATCH --cpus-per-task=4
#SBATCH --error=/scratch/sweep/jobs/logs/4n-nested.%j.err
#SBATCH --exclude=node13
#SBATCH --exclusive
#SBATCH --gpus-per-node=2
#SBATCH --job-name=rankwise-mlp-4n-nested-c8198474
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/scratch/sweep/jobs/logs/4n-nested.%j.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation=bench
#SBATCH --signal=B:USR1@60
#SBATCH --time=150
# A Rankwise 0.2.0+0123456789ab job: `sbatch THIS_FILE` runs what is pending, from any folder; with --force all, once more.
# `python -m launch.step` makes one attempt of a run: it starts the command behind --, ends it where it hangs, and leaves
# in $traces a trace (.h5) and an exit record (.exit.json) with outcome and evidence. Output is in $jobs/logs.
{ umask o-w; script=$(<"$0")  # bash reads to the last brace before it does any of this: the file may be edited meanwhile
jobs=/scratch/sweep/jobs
traces=/scratch/sweep/traces
python=/opt/rankwise/.venv/bin/python
export PYTHONPATH=/opt/rankwise"${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 SLURM_EXPORT_ENV=ALL
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}"; unready=''  # the line of the site that failed: no run starts then
command -v module >/dev/null || . /etc/profile; before() { [ -n "$unready" ] || eval "$1" || unready=$1; }
before 'module load CUDA/12.4'
before 'module load OpenMPI'
mapfile -t node < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}")
[ ${#node[@]} -ge 4 ] || { echo "these runs need 4 nodes: ${node[*]}" >&2; exit 1; }
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK  # steps of Slurm 24.11 have them from their job
options=(--traces "$traces" --logs "$jobs/logs" --code /opt/rankwise --launcher srun --warning-s 60
    --copy-s 10 --start-limit-s 600 --hang-steps 10 --hang-extra-s 60 ${1:+"$1"})
failed='' signal='' busy=''; set -u
received() { signal=$1; [ -z "$busy" ] || kill -s "$1" $!; }
trap 'received USR1' USR1; trap 'received TERM' TERM; trap 'received INT' INT; trap 'received HUP' HUP
# attempt RUN OPTION… -- COMMAND…: one attempt, unless the run is final. The end of it is for a Python that cannot start.
attempt() { busy=yes
    "$python" -m launch.step "${options[@]}" --signal "$signal" "--unready=$unready" --run "$@" <<<"$script" &
    while kill -0 $! 2>/dev/null; do wait $!; done
    wait $!; status=$? busy='' n=1
    case $status in 0) return ;; 12 | 13) exit 1 ;; 1 | 126 | 127) failed=yes ;; *) failed=yes; return ;; esac
    [ -x "$(command -v "$python")" ] && why='see the output of the job' || why='it is gone: was its environment removed?'
    [ -z "$unready" ] || why="the site's line failed: ${unready//[\"\\]/?}"
    while [ -e "$traces/$1.$n.begin.json" ] || [ -e "$traces/$1.$n.exit.json" ]; do n=$((n + 1)); done
    printf '{"run_id": "%s", "attempt": %d, "outcome": "launch_fail", "exit_status": %d, "job_id": "%s", "begin_unix_s":
 %(%s)T, "end_unix_s": %(%s)T, "evidence": ["%s -m launch.step could not start: %s"]}\n' \
        "$1" $n $status "${SLURM_JOB_ID:-local-$HOSTNAME-$$-0}" -1 -1 "${python//[\"\\]/?}" "$why" >"$traces/$1.$n.exit.json"
}
point1() { attempt "$1" --nodes 1 --nodelist "$2" -- env NCCL_ALGO=Ring SLURM_PMIX_FENCE=ring srun \
    --nodes=1 --nodelist="$2" --ntasks=2 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --distribution=block:block --mpi=pmix --kill-on-bad-exit=1 "$python" -m hpc.rank \
    "$jobs/runs/$1.json" --traces "$traces"; }
point2() { attempt "$1" --nodes 2 --nodelist "$2" -- env NCCL_ALGO=Ring SLURM_PMIX_FENCE=ring srun \
    --nodes=2 --nodelist="$2" --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --distribution=block:block --mpi=pmix --kill-on-bad-exit=1 "$python" -m hpc.rank \
    "$jobs/runs/$1.json" --traces "$traces"; }
point3() { attempt "$1" --nodes 4 --nodelist "$2" -- env NCCL_ALGO=Ring SLURM_PMIX_FENCE=ring srun \
    --nodes=4 --nodelist="$2" --ntasks=8 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --distribution=block:block --mpi=pmix --kill-on-bad-exit=1 "$python" -m hpc.rank \
    "$jobs/runs/$1.json" --traces "$traces"; }
point1 1n2g_torch-ddp_mlp_b8_fp32_4715213375_r1 "${node[1]}"
point2 2n2g_torch-ddp_mlp_b8_fp32_ae2e55f07d_r1 "${node[1]},${node[0]}"
point3 4n2g_torch-ddp_mlp_b8_fp32_e07ee7c539_r1 "${node[1]},${node[0]},${node[3]},${node[2]}"
point1 1n2g_torch-ddp_mlp_b8_fp32_4715213375_r2 "${node[0]}"
point2 2n2g_torch-ddp_mlp_b8_fp32_ae2e55f07d_r2 "${node[0]},${node[3]}"
point3 4n2g_torch-ddp_mlp_b8_fp32_e07ee7c539_r2 "${node[0]},${node[3]},${node[2]},${node[1]}"
point1 1n2g_torch-ddp_mlp_b8_fp32_4715213375_r3 "${node[3]}"
point2 2n2g_torch-ddp_mlp_b8_fp32_ae2e55f07d_r3 "${node[3]},${node[2]}"
point3 4n2g_torch-ddp_mlp_b8_fp32_e07ee7c539_r3 "${node[3]},${node[2]},${node[1]},${node[0]}"
point1 1n2g_torch-ddp_mlp_b8_fp32_4715213375_r4 "${node[2]}"
point2 2n2g_torch-ddp_mlp_b8_fp32_ae2e55f07d_r4 "${node[2]},${node[1]}"
point3 4n2g_torch-ddp_mlp_b8_fp32_e07ee7c539_r4 "${node[2]},${node[1]},${node[0]},${node[3]}"
point1 1n2g_torch-ddp_mlp_b8_fp32_4715213375_r5 "${node[1]}"
point2 2n2g_torch-ddp_mlp_b8_fp32_ae2e55f07d_r5 "${node[1]},${node[3]}"
point3 4n2g_torch-ddp_mlp_b8_fp32_e07ee7c539_r5 "${node[1]},${node[3]},${node[0]},${node[2]}"
[ -z "$failed" ] && exit 0 || exit 1; }
