"""Machine 1 says hello to machine 0 on every rail, and tries rail 1 of the peer from its own rail 2.

Machine 0 prints what it heard on each NIC, machine 1 the answers. Sockets are bound to their NIC on both sides.
"""

import json
import os
import socket

ME, NICS, PORT, SIZE = int(os.environ["RDMA_VM"]), int(os.environ["RDMA_VM_NICS"]), 4000, 100


def _datagram(rail: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, f"eth{rail}".encode())
    made.bind((f"10.77.{rail}.{ME + 1}", PORT))
    made.settimeout(20)
    return made


def _answer() -> None:
    ears = {rail: _datagram(rail) for rail in range(1, NICS + 1)}
    with socket.create_server((f"10.77.0.{ME + 1}", PORT)) as door:
        control, _ = door.accept()
    heard = {}
    for rail, ear in ears.items():
        text, sender = ear.recvfrom(SIZE)
        ear.sendto(text, sender)
        heard[f"eth{rail}"] = text.decode()
    control.recv(1)
    print(json.dumps(heard))


def _ask() -> None:
    while True:
        try:
            control = socket.create_connection(("10.77.0.1", PORT), timeout=1)
            break
        except OSError:
            continue
    said: dict[str, object] = {}
    for rail in range(1, NICS + 1):
        ear = _datagram(rail)
        ear.sendto(f"hello rail {rail}".encode(), (f"10.77.{rail}.1", PORT))
        said[str(rail)] = ear.recv(SIZE).decode()
        ear.close()
    across = _datagram(2)
    across.settimeout(1)
    try:
        across.sendto(b"across", ("10.77.1.1", PORT))
        said["across"] = across.recv(SIZE).decode()
    except OSError:
        said["across"] = None
    control.sendall(b".")
    print(json.dumps(said))


if ME == 0:
    _answer()
else:
    _ask()
