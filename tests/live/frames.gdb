# SPDX-License-Identifier: Apache-2.0
# Print the program counters of all frames of all threads, innermost first, as one line of JSON.
set pagination off
set backtrace past-main on
set backtrace past-entry on
python
import json

def counters():
    frames = []
    frame = gdb.newest_frame()
    try:
        while frame is not None and len(frames) < 512:
            # An inlined function is no frame of its own: it has the counter of the one around it.
            if frame.type() != gdb.INLINE_FRAME:
                frames.append(frame.pc())
            frame = frame.older()
    except gdb.error:
        pass
    return frames

threads = {}
for thread in gdb.selected_inferior().threads():
    thread.switch()
    threads[thread.ptid[1]] = counters()
print("FRAMES " + json.dumps(threads))
end
