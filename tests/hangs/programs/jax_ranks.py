"""A process of a job on JAX, on the CPU; the last one sleeps instead of gathering, or fails.

usage: jax_ranks.py RANK COUNT PORT process-sleeps|process-raises
"""

import sys
import time

import announce
import jax
import numpy as np

RANK, COUNT, PORT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(f"127.0.0.1:{PORT}", COUNT, RANK)
from jax.experimental import multihost_utils  # noqa: E402

for _ in range(2):
    multihost_utils.process_allgather(np.ones(4))
announce.member(f"rank{RANK}")
if RANK == COUNT - 1:
    if sys.argv[4] == "process-raises":
        raise ValueError("a part of the data is not there")
    time.sleep(3600)
multihost_utils.process_allgather(np.ones(4))
