"""Side-by-side benchmarks: what is compared runs in one process after another, in turn, and a ratio is reported.

    python -m bench                  all of them
    python -m bench trace_overhead   one

Each writes bench/records/NAME.json: commit, machine, topology, sizes, iterations, percentiles. Is not: a test; nothing
fails because it was slow.
"""
