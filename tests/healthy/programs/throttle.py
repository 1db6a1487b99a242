"""The slow end of a pipeline: 64 KiB every 50 ms; the pause is the load we want to show."""

import os
import time

import announce

for number in range(10**9):
    if not os.read(0, 65536):
        break
    if number == 20:
        announce.member("end")
    time.sleep(0.05)
