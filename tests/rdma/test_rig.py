"""The rig itself: machines boot with their NICs, reach each other rail by rail, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .. import rig
from ..rig import kernel
from .conftest import Run

ROOT = Path(__file__).resolve().parents[2]


def processes(word: str) -> list[int]:
    """Processes whose command line holds `word`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def run_folders() -> set[Path]:
    return set(Path(os.environ.get("TMPDIR", "/tmp")).glob("rig.*"))


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_nic_is_there_with_its_gid(body: Run) -> None:
    found = [json.loads(outcome.stdout) for outcome in body("inventory", machines=2, nics=3)]
    for number, machine in enumerate(found):
        assert list(machine) == ["rxe1", "rxe2", "rxe3"]
        for rail, device in enumerate(machine.values(), 1):
            assert device["state"] == "4: ACTIVE" and device["netdev"] == f"eth{rail}"
            address = f"0000:0000:0000:0000:0000:ffff:0a4d:{rail:02x}{number + 1:02x}"
            assert [address, "RoCE v2"] in device["gids"]


def test_a_rail_reaches_the_same_rail_of_the_other_machine_only(body: Run) -> None:
    here, there = (json.loads(outcome.stdout) for outcome in body("rails", machines=2, nics=3))
    assert there == {"1": "hello rail 1", "2": "hello rail 2", "3": "hello rail 3", "across": None}
    assert here == {"eth1": "hello rail 1", "eth2": "hello rail 2", "eth3": "hello rail 3"}


def test_three_machines_meet_on_a_switch(body: Run) -> None:
    found = [json.loads(outcome.stdout) for outcome in body("everyone", machines=3, nics=2)]
    assert found == [[[rail, peer] for rail in (0, 1, 2) for peer in range(3) if peer != me] for me in range(3)]


def test_statuses_and_outputs_come_back_per_machine(machines: Run) -> None:
    seen: list[tuple[int, str, bytes]] = []
    command = ["sh", "-c", 'echo "out $RDMA_VM of $RDMA_VMS, $RDMA_VM_NICS NICs, $WORD"; printf err >&2; exit $((RDMA_VM * 3))']
    environment = dict(os.environ, WORD="it's \"this\" $HOME")
    found = machines(*command, check=False, nics=0, environment=environment, sink=lambda *given: seen.append(given))
    assert [(outcome.status, outcome.stdout, outcome.stderr) for outcome in found] == [
        (0, "out 0 of 2, 0 NICs, it's \"this\" $HOME\n", "err"),
        (3, "out 1 of 2, 0 NICs, it's \"this\" $HOME\n", "err"),
    ]
    assert rig.status_of(found) == 3 and len(seen) == 4 and (1, "stderr", b"err") in seen


def test_files_are_the_hosts_and_only_shared_folders_are_written_through(machines: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "given").write_text("from the host")
    script = f"cat {tmp_path}/given; echo new > {tmp_path}/made; echo kept > {shared}/made; cat {tmp_path}/made; pwd"
    (found,) = machines("sh", "-c", script, machines=1, nics=0, shared=[shared])
    assert found.stdout == f"from the hostnew\n{Path.cwd()}\n"
    assert not (tmp_path / "made").exists() and (shared / "made").read_text() == "kept\n"


def test_a_command_that_hangs_is_ended_and_the_others_keep_their_outcome(machines: Run) -> None:
    before = run_folders()
    command = ["sh", "-c", 'echo begun; [ "$RDMA_VM" = 0 ] || sleep 1000']
    begin = time.monotonic()
    quick, late = machines(*command, check=False, nics=1, timeout_s=15)
    assert (quick.status, quick.stdout) == (0, "begun\n")
    assert (late.status, late.stdout) == (rig.TIMED_OUT, "begun\n")
    assert time.monotonic() - begin >= 15
    assert run_folders() <= before


def test_a_machine_that_dies_says_so_and_the_other_goes_on(machines: Run) -> None:
    power_off = 'exec perl -e "syscall(169, 0xfee1dead, 672274793, 0x4321fedc, 0)"'
    script = f'[ "$RDMA_VM" = 1 ] || {power_off}; echo well'
    dead, well = machines("sh", "-c", script, check=False, nics=0)
    assert dead.status == rig.DIED and (well.status, well.stdout) == (0, "well\n")


def test_a_command_that_touches_too_many_pages_ends_with_the_reason() -> None:
    # What the kernel of the rig says then; to touch that many pages takes 10 s.
    kernel = "[ 9.66] UML ran out of memory on the host side! This can happen due to a memory limitation or vm.max_map_count ...\n"
    for status, ours in ((139, kernel), (139, "[ 0.60] infiniband rxe1: added eth1\n")):
        told = str(rig.Outcome(0, status, "", "Segmentation fault\n", ours))
        assert ("the host gave it no more memory: a process touched more than vm.max_map_count" in told) == (ours is kernel), told


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_machines_end_with_their_launcher(no_rig: str | None, number: signal.Signals) -> None:
    if no_rig:
        pytest.skip(no_rig)
    before = run_folders()
    word = f"mark-{os.getpid()}-{number}"
    command = [sys.executable, "-m", "tests.rig", "--vms", "2", "--nics", "1", "--", "sh", "-c", f"echo {word}; sleep 1000"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        assert launcher.stdout
        assert {launcher.stdout.readline(), launcher.stdout.readline()} == {f"[vm0] {word}\n", f"[vm1] {word}\n"}
        (folder,) = (made for made in run_folders() - before if word in (made / "command.0").read_text())
        assert len(processes(f"uml_dir={folder}")) >= 2
        launcher.send_signal(number)
        status = launcher.wait(30)
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not processes(f"uml_dir={folder}") and not folder.exists())


def test_machines_that_do_not_fit_in_memory_are_refused(machines: Run) -> None:
    with pytest.raises(rig.RigError, match="16 machines of 65536 MiB do not fit in any of /dev/shm, "):
        machines("true", machines=16, nics=0, memory_mib=65536)


def test_the_command_line_says_what_is_wrong() -> None:
    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = dict(os.environ, **environment)
        return subprocess.run([sys.executable, "-m", "tests.rig", *words], cwd=ROOT, env=given, capture_output=True, text=True)

    assert "COMMAND is missing" in call().stderr
    bad = call("--nics", "17", "--", "true")
    assert (bad.returncode, bad.stderr) == (2, "rig: nics=17: expected 0 to 16\n")
    bad = call("--share", "no-such-folder", "--", "true")
    assert bad.returncode == 2 and "expected a folder" in bad.stderr
    none = call("--", "true", PATH="/nowhere", RIG_KERNEL="/nowhere/linux")
    assert none.returncode == 3 and none.stderr.startswith("no rig: ")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RIG_KERNEL", raising=False)
    monkeypatch.setattr(kernel, "SOURCE", tmp_path / "linux.tar.xz")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name in ("bison", "rdma") else f"/bin/{name}")
    reason = rig.obstacle()
    assert reason and reason.endswith("install --no-install-recommends bison iproute2 linux-source-6.12")
    with pytest.raises(rig.RigUnavailable, match="bison"):
        rig.build()
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(kernel, "SOURCE", Path(__file__))
    monkeypatch.setattr(kernel, "_version", lambda: None)
    assert "dpkg does not know the package linux-source-6.12" in str(rig.obstacle())
    monkeypatch.setattr(kernel, "_version", lambda: "1")
    monkeypatch.setattr(kernel, "_may_trace", lambda: False)
    assert "ptrace" in str(rig.obstacle())


def test_a_kernel_is_known_by_its_source_and_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RIG_KERNEL", raising=False)
    monkeypatch.setattr(kernel, "_version", lambda: "6.12.1-1")
    first = kernel.path()
    assert first and first.parent == tmp_path / "ccl_lab/rig" and first.name.startswith("linux-6.12.1-1-")
    monkeypatch.setattr(kernel, "_version", lambda: "6.12.2-1")
    second = kernel.path()
    other = tmp_path / "kernel.config"
    other.write_text(kernel.CONFIG.read_text() + "CONFIG_NET_SCH_HTB=y\n")
    monkeypatch.setattr(kernel, "CONFIG", other)
    third = kernel.path()
    monkeypatch.setattr(kernel, "PATCHES", ())
    assert len({first, second, third, kernel.path()}) == 4 and kernel.cached() is None


def test_a_source_that_is_written_otherwise_is_not_built_unmended(tmp_path: Path) -> None:
    for name, old, _ in kernel.PATCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"first\n{old}\nlast\n")
    kernel._patch(tmp_path)
    for name, old, new in kernel.PATCHES:
        assert (tmp_path / name).read_text() == f"first\n{new}\nlast\n", old
    with pytest.raises(rig.RigError, match="has no .*written otherwise"):
        kernel._patch(tmp_path)


def test_a_kernel_that_does_not_build_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "linux.tar.xz"
    source.write_bytes(b"no archive")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RIG_KERNEL", raising=False)
    monkeypatch.setattr(kernel, "SOURCE", source)
    monkeypatch.setattr(kernel, "_version", lambda: "0")
    monkeypatch.setattr(kernel, "obstacle", lambda: None)
    with pytest.raises(rig.RigError, match=r"failed at `tar -C .*the log ends:\n.*xz: \(stdin\): File format not recognized"):
        rig.build()
    assert kernel.cached() is None and not list(tmp_path.glob("rig-kernel.*"))
