"""Every machine opens a connection to every other on every rail, and prints [rail, peer] of those that said who they are."""

import json
import os
import socket
import threading

ME, MACHINES, NICS, PORT = int(os.environ["RDMA_VM"]), int(os.environ["RDMA_VMS"]), int(os.environ["RDMA_VM_NICS"]), 4000
EXPECTED = (MACHINES - 1) * (NICS + 1)


def _serve(door: socket.socket) -> None:
    for _ in range(EXPECTED):
        caller, _ = door.accept()
        with caller:
            caller.sendall(bytes([ME]))


def _who(rail: int, peer: int) -> int:
    while True:
        try:
            with socket.create_connection((f"10.77.{rail}.{peer + 1}", PORT), timeout=5) as asked:
                return asked.recv(1)[0]
        except OSError:
            continue


with socket.create_server(("", PORT)) as door:
    server = threading.Thread(target=_serve, args=(door,))
    server.start()
    met = [[rail, _who(rail, peer)] for rail in range(NICS + 1) for peer in range(MACHINES) if peer != ME]
    server.join()
print(json.dumps(met))
