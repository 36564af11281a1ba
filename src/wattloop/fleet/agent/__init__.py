"""The process on a node that reads every sensor once and shares the energy among its jobs."""
