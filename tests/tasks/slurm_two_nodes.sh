#!/bin/bash
#SBATCH --job-name=whetstone-1-2
#SBATCH --chdir=HERE
#SBATCH --output="/home/a b/50%%/stage.log"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=12:00:00
#SBATCH --partition=gpu
#SBATCH --account="the lab"
#SBATCH --constraint=h100
module load cuda
export first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rm -f '/home/a b/50%/slurm.exit'
again=
limit() {
  if [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
    echo "The time limit is near: the job is queued again, and continues from its last commit."
    again=yes
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "The time limit is near."
  fi
}
trap limit USR1
srun --kill-on-bad-exit=1 --cpus-per-task=32 bash -c 'exec PYTHON -P -u ROOT/whetstone_launcher.py pipelines.stage.launch pipelines.rlvr '"'"'/home/a b/50%'"'"' --nodes 2 --node "$SLURM_NODEID" --address "$first:29400" --interface ib0' &
step=$!
while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done
if [ -n "$again" ]; then sleep 60; fi
echo "whetstone-1-2 $SLURM_JOB_ID $code" > '/home/a b/50%/slurm.exit'.new
mv '/home/a b/50%/slurm.exit'.new '/home/a b/50%/slurm.exit'
exit "$code"
