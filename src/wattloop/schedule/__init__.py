"""A GPU cluster, jobs that come and go, and the policies that place them, judged by energy.

What a policy sees and says, in the simulator as on a real cluster:

The rest:
"""
