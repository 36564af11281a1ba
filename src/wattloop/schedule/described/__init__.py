"""What is believed of a job that somebody submitted: from text to something an oracle can judge.

submitted   what the batch system says of a job; nothing of it is trusted. The grammar of its
            comment, and the bounds of what that states, are in `wattloop.fleet.job_tag`
rules       the operator's file: jobs of this name, account or script train that model
history     time and power of the same user's jobs of the same name, from the store
model_names models that may be named, and the nearest ones of those that may not
timed       jobs of which only a time is known, for an oracle
background, fleet_oracle
            one oracle for all of them, shared, whose memory is bounded
describe    comment, rules, history, time limit: in this order
described_job
            the result, with its source and what was refused

    oracle = FleetOracle.of(cluster, OracleSpec())
    describer = Describer(oracle, rules=load_rules("jobs.yaml"), history=History(store))
    job = describer.describe(SubmittedJob(job_id="17", user="ada", gpus=2, comment=text))
    options = oracle.options(job.kind)  # time of option i: job.work * options.sample_s[i]
"""

from wattloop.schedule.described.describe import Describer
from wattloop.schedule.described.described_job import DescribedJob, EstimateSource
from wattloop.schedule.described.fleet_oracle import FleetOracle
from wattloop.schedule.described.submitted import SubmittedJob

__all__ = ["DescribedJob", "Describer", "EstimateSource", "FleetOracle", "SubmittedJob"]
