"""all_to_allv_dynamic, its persistent form, and experts over verbs: the cases of the other transports; prints what explain() says."""

import json
import sys

from tests.integration import exchange_cases

from .jobs import join

settings = dict(word.split("=", 1) for word in sys.argv[1:])
with join(**{"timeout": "60s", **settings}) as comm:
    exchange_cases.random_routings(comm, 20)
    exchange_cases.long_pieces(comm)
    exchange_cases.read_when_it_starts(comm)
    exchange_cases.persistent(comm, 20)
    exchange_cases.moe_routings(comm, 4)
    explained = comm.explain()
print(json.dumps({"explained": explained}))
