#!/bin/sh
# A run of 8 ranks on 2 hosts: sbatch slurm.sh gpt.json
# It is saved before its time is over, and goes on in the queue; so it does, twice, when it failed.
#SBATCH --job-name=gpt --nodes=2 --ntasks-per-node=4 --cpus-per-task=1
#SBATCH --time=01:00:00 --signal=TERM@120 --requeue --open-mode=append
run=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID # The same at each start, on a file system of all hosts.
srun penstock train "$1" --run "$run" --checkpoint-every 100 --resume auto
code=$?
case $code in
  75) scontrol requeue "$SLURM_JOB_ID" ;;                                        # Asked to stop.
  4 | 5) [ "${SLURM_RESTART_COUNT:-0}" -ge 2 ] || scontrol requeue "$SLURM_JOB_ID" ;; # Lost ranks.
esac
exit $code
