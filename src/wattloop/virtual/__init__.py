"""The virtual GPU: a physical model that is meter, lever and workload where there is no hardware.

Its numbers are marked `simulated` wherever they appear.

- `physics`     power, clock and speed of a card under a cap
- `cards`       parameters of five cards, each with its source
- `timeline`    what the cards did and when, shared between processes through a file
- `gpu`         a card: limits, load, work and exact energy; `faults`, `owner`, `noise` belong to it
- `node`        a node around cards: host, fans, power supplies; `nodes` has its parameters
- `job`         data-parallel trainings: computation, communication, waiting for the host
- `machine`     the cards and the node that all processes of a user see
- `meter`       meters of the cards; `node_meter` that of the node
- `lever`       power limit, SM clock and memory clock of the cards
- `work`        `python -m wattloop.virtual.work`: a program that loads the cards in real time
- `train`       `python -m wattloop.virtual.train`: a training whose time reacts to caps and clocks
"""
