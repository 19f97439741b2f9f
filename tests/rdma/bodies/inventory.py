"""Prints the RDMA devices of this machine as sysfs has them."""

import json
from pathlib import Path


def _gids(port: Path) -> list[list[str]]:
    found = []
    for entry in sorted(port.glob("gids/*"), key=lambda path: int(path.name)):
        try:
            found.append([entry.read_text().strip(), (port / "gid_attrs/types" / entry.name).read_text().strip()])
        except OSError:  # an empty entry of the table has no type
            continue
    return found


found = {}
for device in sorted(Path("/sys/class/infiniband").iterdir()):
    port = device / "ports/1"
    found[device.name] = {
        "state": (port / "state").read_text().strip(),
        "netdev": (port / "gid_attrs/ndevs/0").read_text().strip(),
        "gids": _gids(port),
    }
print(json.dumps(found))
