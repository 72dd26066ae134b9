"""Two ranks that train with numpy and mpi4py, and no torch; two lines say where batches and steps are.

Rank 1 sleeps so many ms at each batch, or behind each batch (inside the step) and never meets the other: WHERE MS.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpc.observe import data, step

where, late_s = sys.argv[1], float(sys.argv[2]) / 1e3
world = MPI.COMM_WORLD
late_s *= world.rank
weights = np.zeros((8, 8))


def batches():
    for number in range(60):
        if where == "data":
            time.sleep(late_s)
        yield np.full((4, 8), float(number))


for batch in data(batches()):
    gradient = batch.T @ (batch @ weights - batch)
    if where != "data":
        time.sleep(late_s)
    if where != "alone":
        mean = np.empty_like(gradient)
        world.Allreduce(gradient, mean)
    weights -= 1e-9 * gradient
    step()
