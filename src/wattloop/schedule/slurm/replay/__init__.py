"""A scenario's jobs on a real Slurm with virtual GPUs, beside what the simulator says of them.

plan      the jobs of a scenario, sped up, as their users ask for them and as they could also run
cards     a virtual GPU for every GPU type of the cluster: same idle power, any load
job       `python -m wattloop.schedule.slurm.replay.job`: a job that occupies the GPUs it was given
watching  power and energy of all nodes, from their virtual meters
submit    a job as sbatch takes it
carried   one policy on the real Slurm, from the first submission to the last end
notes     what every job did and when, by its own account
latency   what this Slurm took to start a job, and to give its GPUs to the next
limits    what a scheduler believes of jobs of which it knows time limits only
outcome   the figures of a run, real or simulated, and how they differ
"""
