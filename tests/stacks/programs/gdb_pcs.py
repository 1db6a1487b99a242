"""For gdb's own Python: prints the PCs of every thread, one JSON list [thread id, [pc, ...]] a line after "PCS "."""

import json

import gdb

MOST_FRAMES = 512
# They have no place on the stack: gdb makes them of what the compiler wrote down.
MADE_UP = (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)


def pcs():
    found = []
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(found) < MOST_FRAMES:
            if frame.type() not in MADE_UP:
                found.append(frame.pc())
            frame = frame.older()
    except gdb.error:
        pass  # what was found so far is what gdb knows
    return found


for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("PCS " + json.dumps([thread.ptid[1], pcs()]), flush=True)
