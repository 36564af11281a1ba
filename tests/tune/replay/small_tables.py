"""Tiny tables of the Zeus form: two batch sizes that can be replayed, and some that cannot."""

from pathlib import Path
from typing import NamedTuple

POWER = """dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
d,n,32,adam,100,120,90
d,n,32,adam,200,100,150
d,n,64,adam,100,60,95
d,n,64,adam,200,50,160
d,n,128,adam,100,55,98
d,n,128,adam,200,45,170
d,n,256,adam,100,50,99
d,n,256,adam,200,40,180
"""
TRAIN = """dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
d,n,32,adam,1e-3,1,0.5,1
d,n,32,adam,1e-3,1,0.8,4
d,n,32,adam,1e-3,2,0.5,2
d,n,32,adam,1e-3,2,0.8,6
d,n,64,adam,2e-3,1,0.5,2
d,n,64,adam,2e-3,1,0.8,6
d,n,64,adam,2e-3,2,0.5,2
d,n,64,adam,2e-3,2,0.8,6
d,n,128,adam,3e-3,1,0.5,4
d,n,128,adam,3e-3,1,0.8,nan
d,n,128,adam,3e-3,2,0.5,4
d,n,128,adam,3e-3,2,0.8,nan
d,n,16,adam,3e-3,1,0.8,3
"""
PROBLEMS = """dataset,network,optimizer,target_metric,higher_is_better,max_epochs,default_batch_size
d,n,adam,0.8,1,20,32
"""


class Tables(NamedTuple):
    """Where they were written."""

    power: Path
    train: Path
    problems: Path

    @property
    def options(self) -> list[str]:
        """Of the command line."""
        return [
            "--power",
            str(self.power),
            "--train",
            str(self.train),
            "--problems",
            str(self.problems),
        ]


def write_tables(
    folder: Path, power: str = POWER, train: str = TRAIN, problems: str = PROBLEMS
) -> Tables:
    """The three files."""
    tables = Tables(folder / "power_x1.csv", folder / "train.csv", folder / "problems.csv")
    for path, text in zip(tables, (power, train, problems), strict=True):
        path.write_text(text)
    return tables
