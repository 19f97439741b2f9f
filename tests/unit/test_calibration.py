"""What a machine adds, found again from runs that are simulations of a machine with known numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import Topology, plan
from ccl_lab.calibration import Calibration, calibrate, entries, measured_us, simulated_us
from ccl_lab.errors import UsageError
from ccl_lab.ir import Schedule
from ccl_lab.simulator import simulate
from ccl_lab.trace import Trace


class ModelledWorld:
    """Runs schedules by simulating them: on links with latencies of their own, each transfer of `alpha`, ranks let in one by one."""

    def __init__(self, topology: Topology, nic_us: float, fabric_us: float, alpha_us: float) -> None:
        self.topology, self.alpha = topology, alpha_us * 1e-6
        self._real = Calibration(topology, nic_us, fabric_us, alpha_us, 0.0).modelled
        self._rng = np.random.default_rng(3)

    def run(self, schedule: Schedule) -> Trace:
        late = [int(each) * 1e-6 for each in self._rng.integers(0, 300, self.topology.n_ranks)]
        return simulate(schedule, self._real, late=late, alpha=self.alpha)


def shaped(**options: Any) -> Topology:
    return Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=0.25, fabric_gbytes_per_s=2, **options)


@pytest.mark.parametrize("added", [(300.0, 40.0, 80.0), (40.0, 10.0, 150.0)])
def test_numbers_of_a_known_machine_are_found(added: tuple[float, float, float]) -> None:
    world = ModelledWorld(shaped(), *added)
    found = calibrate(world, runs=1)  # type: ignore[arg-type]
    assert found.error < 0.05
    for collective, algorithm in (("all_reduce", "ring"), ("all_to_all", "direct"), ("reduce", "binomial")):
        schedule = plan(collective, found.modelled, 1 << 18, algorithm=algorithm)
        trace = world.run(schedule)
        simulated = simulated_us(schedule, found.modelled, entries(trace), found.alpha_us)
        assert simulated == pytest.approx(measured_us(trace, schedule), rel=0.1), (collective, found)


def test_ranks_without_ops_do_not_count() -> None:
    topology = shaped()
    schedule = plan("send_recv", topology, 1 << 16, peer=4)
    trace = simulate(schedule, topology, late={7: 1.0})  # comes when the others are long done
    assert measured_us(trace, schedule) == pytest.approx(simulated_us(schedule, topology, {}, 0.0), abs=0.01)
    assert entries(trace)[7] == "1000000000ns"


def test_a_calibration_simulates_with_all_it_found() -> None:
    topology = shaped()
    schedule = plan("all_reduce", topology, 1 << 16, algorithm="ring")
    machine = Calibration(topology, 100.0, 50.0, 20.0, 0.0)
    assert machine.simulate(schedule).time_us == pytest.approx(simulated_us(schedule, machine.modelled, {}, 20.0), abs=1e-3)
    assert machine.simulate(schedule).time_us > simulate(schedule, topology).time_us + 200
    assert Calibration(topology, **machine.to_dict()).modelled.to_dict() == machine.modelled.to_dict()


def test_what_cannot_be_calibrated_is_refused() -> None:
    world = ModelledWorld(Topology.cluster(nodes=1, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=1), 1.0, 1.0, 1.0)
    with pytest.raises(UsageError, match="1 ranks"):
        calibrate(world)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not say when its ranks began"):
        entries(Trace({name: column[:0] for name, column in simulate(plan("barrier", shaped(), 0), shaped()).columns.items()}, {}))
