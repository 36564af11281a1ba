"""Steps of a program that `wattloop run` starts, noticed without changing the program."""
