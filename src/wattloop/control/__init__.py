"""Control of power and clocks: levers of devices, set under a lock and always restored."""
