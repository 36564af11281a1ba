"""The virtual GPU: a physical model that is meter, lever and workload where there is no hardware.

Its numbers are marked `simulated` wherever they appear.

- `physics`   power, clock and speed of a card under a cap; the sensors' view of it
- `cards`     parameters of three cards, each with its source
- `timeline`  what the cards did and when, shared between processes through a file
- `gpu`       a card: limits, load, work, faults and exact energy
- `meter`     its meters
- `work`      `python -m wattloop.virtual.work`: a program that loads it in real time
"""
