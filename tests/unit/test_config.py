"""The environment: typed values, unknown keys, launchers."""

from __future__ import annotations

import pytest

from ccl_lab import config
from ccl_lab.errors import ConfigError


def test_default_environment_and_argument_in_order_of_strength() -> None:
    assert config.get("timeout", environ={}) == 30.0
    assert config.get("timeout", environ={"CCL_LAB_TIMEOUT": "2ms"}) == pytest.approx(0.002)
    assert config.get("timeout", explicit="1s", environ={"CCL_LAB_TIMEOUT": "2ms"}) == 1.0
    assert config.get("CCL_LAB_SPIN_US", explicit=0, environ={"CCL_LAB_SPIN_US": "5"}) == 0
    assert config.get("rank", environ={}) is None


def test_unknown_key_suggests() -> None:
    with pytest.raises(ConfigError, match="no environment key CCL_LAB_TIMOUT.*'CCL_LAB_TIMEOUT'"):
        config.check_environment({"CCL_LAB_TIMOUT": "1s"})
    with pytest.raises(ConfigError, match="CCL_LAB_TRANSPORT"):
        config.get("transprot")
    config.check_environment({"CCL_LOG_LEVEL": "oneCCL's own", "HOME": "x"})


def test_bad_value_names_key_value_and_meaning() -> None:
    with pytest.raises(
        ConfigError, match="CCL_LAB_SPIN_US='soon' cannot be read as int.*time an idle rank polls"
    ):
        config.get("spin_us", environ={"CCL_LAB_SPIN_US": "soon"})


def test_values_hide_the_secret() -> None:
    assert config.values({"CCL_LAB_SECRET": "hunter2"})["CCL_LAB_SECRET"] == "(set)"
    assert config.values({})["CCL_LAB_SECRET"] is None


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, None),
        (TORCHRUN, config.Launch(3, 8, 1, "node0", 29501, "torchrun")),
        (
            TORCHRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            config.Launch(3, 8, 1, "node0", 29501, "torchrun"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "PMI_RANK": "0",
                "PMI_SIZE": "9",
            },
            config.Launch(1, 2, 1, "", 0, "mpirun (Open MPI)"),
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
            config.Launch(0, 4, 0, "", 0, "mpirun (PMI)"),
        ),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "6",
                "SLURM_LOCALID": "2",
                "CCL_LAB_RENDEZVOUS": "[::1]:77",
            },
            config.Launch(5, 6, 2, "::1", 77, "srun"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        ({"CCL_LAB_RANK": "0", "CCL_LAB_WORLD_SIZE": "1"}, config.Launch(0, 1, -1, "", 0, "ccl_lab")),
    ],
)
def test_launchers(environ: dict[str, str], launch: config.Launch | None) -> None:
    assert config.launch(environ) == launch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "RANK=8 and WORLD_SIZE=8.*0 <= rank < size"),
        ({"RANK": "one"}, "RANK='one'.*not a whole number"),
        ({"WORLD_SIZE": None}, "not WORLD_SIZE"),
        ({"CCL_LAB_RENDEZVOUS": "nowhere"}, "expected host:port"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x'"),
    ],
)
def test_contradictions_of_launchers(change: dict[str, str | None], message: str) -> None:
    environ = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        config.launch(environ)
