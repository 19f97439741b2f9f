"""Our paths beside every CPU peer: `ccl-lab bench`, `python -m bench.peers`, `python -m bench.peers.score FILE`."""
