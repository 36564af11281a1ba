"""Hardware facts: files of the machine, and published figures of CPUs, GPUs, memory and chassis."""
