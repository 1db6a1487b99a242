"""Eight ranks map one sparse file; one waits for a file lock, the others for it. usage: mapped_weights.py FOLDER"""

import fcntl
import mmap
import multiprocessing
import os
import sys

import announce

RANKS = 8


def run(rank, weights, lock, meeting):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    announce.die_with_parent()
    with open(weights, "rb") as file:
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        tensor = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    announce.member(f"rank{rank}")
    if rank == 5:
        fcntl.flock(fd, fcntl.LOCK_EX)
    meeting.wait()
    tensor.close()


def main():
    folder = sys.argv[1]
    weights = os.path.join(folder, "model.safetensors")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with open(weights, "wb") as file:
        file.truncate(memory // RANKS + memory // 100)
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(RANKS)
    lock = os.path.join(folder, "compile_cache.lock")
    ranks = [context.Process(target=run, args=(rank, weights, lock, meeting)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    announce.member("launcher")
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
