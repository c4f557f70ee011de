# SPDX-License-Identifier: Apache-2.0
# Print as one line of JSON, for each thread: the number of the system call that it is in, its first
# argument, and the program counters of all frames, innermost first.
set pagination off
set backtrace past-main on
python
import json

def register(name):
    return int(gdb.newest_frame().read_register(name)) & 0xFFFFFFFFFFFFFFFF

def counters():
    frames = []
    frame = gdb.newest_frame()
    try:
        while frame is not None and len(frames) < 512:
            # Neither kind is on the stack: an inlined function is part of the one around it, and
            # one that jumped to its last callee is gdb's conclusion from debug information.
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                frames.append(frame.pc())
            frame = frame.older()
    except gdb.error:
        pass
    return frames

threads = {}
for thread in gdb.selected_inferior().threads():
    thread.switch()
    threads[thread.ptid[1]] = [register("orig_rax"), register("rdi"), counters()]
print("FRAMES " + json.dumps(threads))
end
