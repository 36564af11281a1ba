#!/bin/sh
# Slurm epilog: leaves a note for this node's Wattloop agent that a job has ended here.
# Whatever goes wrong, the node stays in service: this script always ends with 0.
folder="@FOLDER@"
events="$folder/events"
# Only into a folder of root's: in anybody else's the note might be a link to somewhere.
[ -n "$SLURM_JOB_ID" ] && [ -d "$events" ] && [ -O "$events" ] || exit 0
umask 077
now=$(date +%s%N 2>/dev/null) || exit 0
read -r uptime _ </proc/uptime
read -r boot </proc/sys/kernel/random/boot_id
name="$now-$SLURM_JOB_ID-end"
{
    printf 'event=end\ntime_ns=%s\nuptime_s=%s\nboot=%s\n' "$now" "$uptime" "$boot"
    printf 'job=%s\nrestart=%s\n' "$SLURM_JOB_ID" "$SLURM_JOB_RESTART_COUNT"
    printf 'uid=%s\nnode=%s\nexit=%s\n' "$SLURM_JOB_UID" "$SLURMD_NODENAME" "$SLURM_JOB_EXIT_CODE"
    printf 'whole=yes\n'
} >"$events/.$name" 2>/dev/null && mv "$events/.$name" "$events/$name" 2>/dev/null
exit 0
