"""A rank that joins a job of which one rank never comes."""

import os

import announce
import torch.distributed as dist

announce.member(f"rank{os.environ['RANK']}")
dist.init_process_group("gloo")
