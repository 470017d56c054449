#!/bin/bash
# A Ray cluster inside a SLURM job, and one scenario on it:
#
#   sbatch cluster/slurm.sh scenarios/quickstart.yaml rounds=20 --out ~/runs/quickstart
#
# Two kinds of nodes are the two parts of a heterogeneous job: part 0 strong (hpc), part 1 weak (lpc). Tiers pin to them
# by custom resources: clients: {tiers: {hpc: {resources: {hpc: 1}}, lpc: {resources: {lpc: 1}}}}
# Change what is marked CHANGE. --out is on a file system that the nodes share, so nothing has to be fetched.
#
#SBATCH --job-name=fedray
#SBATCH --time=04:00:00
#SBATCH --partition=big --nodes=2 --ntasks-per-node=1 --cpus-per-task=16 --exclusive
#SBATCH hetjob
#SBATCH --partition=small --nodes=4 --ntasks-per-node=1 --cpus-per-task=2 --exclusive
# CHANGE: partitions, nodes and CPUs of both parts; without weak nodes drop `hetjob` and the line behind it
set -euo pipefail

VENV=${VENV:-$HOME/venv}  # CHANGE: where fedray is installed, on the shared file system
PORT=${PORT:-6379}
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
[ -f "$RAY_AUTH_TOKEN_PATH" ] || "$VENV/bin/ray" get-auth-token --generate > /dev/null

nodes() { scontrol show hostnames "$1"; }
strong=($(nodes "${SLURM_JOB_NODELIST_HET_GROUP_0:-$SLURM_JOB_NODELIST}"))
weak=(${SLURM_JOB_NODELIST_HET_GROUP_1:+$(nodes "$SLURM_JOB_NODELIST_HET_GROUP_1")})
head=${strong[0]}
address=$(srun --het-group=0 --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | cut -d' ' -f1)

# start PART NODE RESOURCES ARGUMENTS...: one `ray start` that lasts as long as the job
start() {
  local part=$1 node=$2 resources=$3
  shift 3
  srun --het-group="$part" --nodes=1 --ntasks=1 --nodelist="$node" \
    "$VENV/bin/ray" start --block --disable-usage-stats --resources="$resources" "$@" &
}

strong_cpus=${SLURM_CPUS_PER_TASK_HET_GROUP_0:-${SLURM_CPUS_PER_TASK:-16}}
start 0 "$head" "{\"hpc\": $strong_cpus}" \
  --head --node-ip-address="$address" --port="$PORT" --dashboard-host=127.0.0.1
sleep "${PAUSE:-15}"
for node in "${strong[@]:1}"; do start 0 "$node" "{\"hpc\": $strong_cpus}" --address="$address:$PORT"; done
for node in "${weak[@]}"; do start 1 "$node" "{\"lpc\": ${SLURM_CPUS_PER_TASK_HET_GROUP_1:-2}}" --address="$address:$PORT"; done

wait_for="hpc=$((${#strong[@]} * $strong_cpus))"
[ ${#weak[@]} -eq 0 ] || wait_for+=",lpc=$((${#weak[@]} * ${SLURM_CPUS_PER_TASK_HET_GROUP_1:-2}))"
srun --het-group=0 --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  "$VENV/bin/fedray" run "$@" --address "$address:$PORT" --wait-for "$wait_for"
kill $(jobs -p) 2> /dev/null || true  # the job ends here, and Ray with it
