"""The node agent: reads every sensor once and attributes the energy to jobs."""
