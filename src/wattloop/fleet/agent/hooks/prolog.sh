#!/bin/sh
# Slurm prolog: leaves a note for this node's Wattloop agent that a job begins here.
# Whatever goes wrong, the job starts: this script always ends with 0.
folder="@FOLDER@"
events="$folder/events"
# Only into a folder of root's: in anybody else's the note might be a link to somewhere.
[ -n "$SLURM_JOB_ID" ] && [ -d "$events" ] && [ -O "$events" ] || exit 0
umask 077
now=$(date +%s%N 2>/dev/null) || exit 0
read -r uptime _ </proc/uptime
read -r boot </proc/sys/kernel/random/boot_id
name="$now-$SLURM_JOB_ID-start"
lines='
'
# One line per fact; a value with a line break in it is rejected as forged.
fact() {
    case $2 in
    '') ;;
    *"$lines"*) printf 'odd=%s\n' "$1" ;;
    *) printf '%s=%.400s\n' "$1" "$2" ;;
    esac
}
{
    fact event start
    fact time_ns "$now"
    fact uptime_s "$uptime"
    fact boot "$boot"
    fact job "$SLURM_JOB_ID"
    fact restart "$SLURM_JOB_RESTART_COUNT"
    fact uid "$SLURM_JOB_UID"
    fact user "$SLURM_JOB_USER"
    fact node "$SLURMD_NODENAME"
    fact cluster "$SLURM_CLUSTER_NAME"
    fact partition "$SLURM_JOB_PARTITION"
    fact account "$SLURM_JOB_ACCOUNT"
    fact nodes "$SLURM_JOB_NUM_NODES"
    fact nodelist "$SLURM_NODELIST"
    fact gpus "$SLURM_JOB_GPUS"
    fact cpus "$SLURM_JOB_CPUS_PER_NODE"
    fact comment "$SLURM_JOB_COMMENT"
    fact whole yes
} >"$events/.$name" 2>/dev/null && mv "$events/.$name" "$events/$name" 2>/dev/null || exit 0

# Where caps are in use, the agent says in this file which process it is. A job waits for its cap
# while that process lives, and for a bounded time; without caps or agent it does not wait at all.
[ -r "$folder/caps" ] && read -r agent <"$folder/caps" && [ -d "/proc/$agent" ] || exit 0
looks=0
while [ "$looks" -lt "@LOOKS@" ] && [ ! -e "$folder/ready/$SLURM_JOB_ID" ]; do
    sleep 0.05
    looks=$((looks + 1))
done
exit 0
