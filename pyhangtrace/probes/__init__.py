"""eBPF programs, and what loads, attaches and reads them, in a process of its own.

`window.bpf.c` counts futex waits, wake-ups and page faults for a short window; `child` is the process that runs it
(started by `pyhangtrace.collect.probes`), `events` decodes what it counted, `capability` says what works here.
Everything the child imports is standard library, so that it starts at once and anywhere.
"""
