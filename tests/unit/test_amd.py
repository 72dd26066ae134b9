"""AMD GPUs where no framework is needed: rules of devices, visible devices, facts, telemetry, RCCL's log.

Answers of amdsmi are MADE after its Python module (7.0.2) and documentation; lines of RCCL are recorded from its public
issues. None of it has run on such a machine.
"""

from __future__ import annotations

import dataclasses
import sys
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.model.findings import State
from hpc.node_agent.gpus import AmdSmi, driver_here, gpus
from hpc.node_agent.sources import Unread
from hpc.node_agent.telemetry import Readings
from hpc.preflight.facts import by_amdsmi, devices_of_rank, gpus_in_sight
from hpc.system.gpus import NoDriver, amd_gpus_of_kernel, gpus_of_kernel, has_amd_gpus, load_amdsmi
from tests.unit.preflight_facts import RUN, findings, seen
from tests.unit.telemetry_nodes import AMD_UUIDS, FakeAmdSmi


@pytest.mark.parametrize("architecture", ["gfx908:sramecc+:xnack-", "gfx942", "gfx950", "gfx1100"])
def test_architectures_with_bf16(architecture: str) -> None:
    for precision in ("fp32", "bf16", "amp-fp16"):
        checks.check_amd_precision(precision, "AMD GPU", architecture)
    with pytest.raises(InvalidRun, match="tf32 was requested; it is a mode of NVIDIA GPUs"):
        checks.check_amd_precision("tf32", "AMD GPU", architecture)


@pytest.mark.parametrize("architecture", ["gfx906:sramecc+:xnack-", "gfx1030", "gfx9"])
def test_an_architecture_that_is_not_known_to_have_bf16_is_refused(architecture: str) -> None:
    with pytest.raises(
        InvalidRun, match=f"bf16 was requested; AMD GPU \\({architecture.partition(':')[0]}\\) is none of"
    ):
        checks.check_amd_precision("bf16", "AMD GPU", architecture)
    checks.check_amd_precision("amp-fp16", "AMD GPU", architecture)


@pytest.mark.parametrize(
    "environ",
    [
        {"ROCR_VISIBLE_DEVICES": "2,3"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
        {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"},
        {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"},
        {"ROCR_VISIBLE_DEVICES": "GPU-0325447e39149eba", "HIP_VISIBLE_DEVICES": "GPU-0325447e39149eba"},
    ],
)
def test_variables_that_agree_are_no_reason_to_refuse(environ: dict[str, str]) -> None:
    checks.check_visible_once(environ)


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_gpus_that_are_hidden_twice_are_refused_with_the_variable_to_set(variable: str) -> None:
    with pytest.raises(
        InvalidRun, match=f"{variable}=4,5 among these, of which there is no 4: set HIP_VISIBLE_DEVICES=0,1,"
    ):
        checks.check_visible_once({"ROCR_VISIBLE_DEVICES": "4,5", variable: "4,5"})


@pytest.mark.parametrize("backend", ["paddle-fleet", "tensorflow-horovod", "tensorflow-multiworker"])
def test_backends_that_drive_nvidia_gpus_only_say_so_by_name(backend: str) -> None:
    run = dataclasses.replace(RUN, backend=backend)
    with pytest.raises(InvalidRun, match=f"is built for ROCm, and {backend} drives NVIDIA GPUs only: take torch-ddp"):
        checks.check_nvidia_only(run, "Framework 1.0", is_rocm=True)
    checks.check_nvidia_only(run, "Framework 1.0", is_rocm=False)


def test_ranks_with_different_versions_of_rccl_are_found() -> None:
    software = {number: {"software": {"torch": "2.6", "hip": "6.2", "rccl": "2.20.5"}} for number in range(4)}
    assert findings(seen(software))["same_nccl"].text == "RCCL 2.20.5 on all ranks"
    software[2]["software"] |= {"rccl": "2.21.5"}
    by_name = findings(seen(software))
    assert by_name["same_nccl"].state is State.FAILED
    assert by_name["same_nccl"].text == "ranks differ in RCCL: 2.20.5 on rank 0-1, 3; 2.21.5 on rank 2"
    assert by_name["same_framework"].state is State.OK


BARE = tuple(uuid.removeprefix("GPU-") for uuid in AMD_UUIDS)
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The kernel's files of two GPUs: KFD's topology behind a processor and the graphics inside of it, the PCI devices,
    the render nodes."""
    for node, (simd, unique_id) in enumerate(((0, 0), (8, 0), (440, int(BARE[0], 16)), (440, int(BARE[1], 16)))):
        folder = tmp_path / "nodes" / str(node)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(
            f"cpu_cores_count {64 - 64 * min(node, 1)}\nsimd_count {simd}\nunique_id {unique_id}\n"
        )
    for bus, cores in (("1b", "0-3"), ("9a", "4-7")):
        folder = tmp_path / "devices" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text("0\n")
        (folder / "local_cpulist").write_text(f"{cores}\n")
    for minor in (128, 136):
        (tmp_path / f"renderD{minor}").touch()
    return tmp_path


def test_the_kernel_counts_gpus_for_computing_and_no_graphics_inside_a_processor(machine: Path) -> None:
    assert amd_gpus_of_kernel(machine / "nodes") == 2
    assert gpus_of_kernel(machine / "absent", machine / "nodes") == 2
    assert has_amd_gpus(machine / "absent", machine / "nodes")


def test_gpus_of_a_virtual_machine_are_amds_though_they_have_no_identity(machine: Path) -> None:
    for node in ("2", "3"):
        (machine / "nodes" / node / "properties").write_text("cpu_cores_count 0\nsimd_count 440\nunique_id 0\n")
    assert amd_gpus_of_kernel(machine / "nodes") == 0
    assert has_amd_gpus(machine / "absent", machine / "nodes")


def test_a_machine_with_nvidias_driver_has_nvidia_gpus(machine: Path) -> None:
    nvidia = machine / "nvidia"
    (nvidia / "0000:65:00.0").mkdir(parents=True)
    assert gpus_of_kernel(nvidia, machine / "nodes") == 1
    assert not has_amd_gpus(nvidia, machine / "nodes")


def test_a_machine_without_a_driver_has_none(tmp_path: Path) -> None:
    assert gpus_of_kernel(tmp_path / "absent", tmp_path / "absent") is None
    assert not has_amd_gpus(tmp_path / "absent", tmp_path / "absent")


def test_the_facts_of_gpus_are_in_hips_order(machine: Path) -> None:
    first, second = by_amdsmi(FakeAmdSmi(), machine / "devices", machine)
    assert (first.uuid, second.uuid) == BARE
    assert (first.name, first.driver, first.memory_bytes) == ("AMD Instinct MI300X", "6.14.14", 196592 << 20)
    assert (first.used_bytes, first.processes) == (283 << 20, ())
    assert second.processes == ("python3 (pid 77) 2.0 GiB",)
    assert (first.near_cores, second.near_cores) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_gpu_whose_render_node_is_hidden_is_not_in_sight(machine: Path) -> None:
    (machine / "renderD128").unlink()
    assert [gpu.uuid for gpu in by_amdsmi(FakeAmdSmi(), machine / "devices", machine)] == [BARE[1]]


def test_an_amdsmi_that_does_not_know_hips_order_is_named(machine: Path) -> None:
    class Older(FakeAmdSmi):
        @property
        def amdsmi_get_gpu_enumeration_info(self) -> Any:
            raise AttributeError

    with pytest.raises(NoDriver, match=r"in which order HIP numbers the GPUs: that of ROCm 6\.4"):
        by_amdsmi(Older(), machine / "devices", machine)


def test_partitions_with_one_uuid_are_left_to_hip(machine: Path) -> None:
    class Partitioned(FakeAmdSmi):
        def amdsmi_get_gpu_enumeration_info(self, gpu: int) -> dict[str, Any]:
            return {**super().amdsmi_get_gpu_enumeration_info(gpu), "hip_uuid": AMD_UUIDS[0]}

    with pytest.raises(NoDriver, match="one UUID for several GPUs, as for partitions of one"):
        by_amdsmi(Partitioned(), machine / "devices", machine)


def test_a_failing_library_is_named_on_one_line(machine: Path) -> None:
    class Failing(FakeAmdSmi):
        def amdsmi_get_processor_handles(self) -> list[int]:
            raise self.AmdSmiException("Error code:\n\t34 | AMDSMI_STATUS_DRIVER_NOT_LOADED")

    with pytest.raises(NoDriver, match=r"^amdsmi: Error code: 34 \| AMDSMI_STATUS_DRIVER_NOT_LOADED$"):
        by_amdsmi(Failing(), machine / "devices", machine)


@pytest.mark.parametrize(
    ("environ", "place", "uuids"),
    [
        ({}, 1, (BARE[1],)),
        ({"ROCR_VISIBLE_DEVICES": "1"}, 5, (BARE[1],)),
        ({"ROCR_VISIBLE_DEVICES": "1,0"}, 0, (BARE[1],)),
        ({"ROCR_VISIBLE_DEVICES": f"GPU-{BARE[1].upper()}"}, 0, (BARE[1],)),
        ({"HIP_VISIBLE_DEVICES": "1"}, 0, (BARE[1],)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 0, (BARE[1],)),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, 0, (BARE[0],)),  # HIP's own goes first
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, 0, (BARE[1],)),  # empty is unset to HIP
        ({"ROCR_VISIBLE_DEVICES": ""}, 0, ()),  # but not to ROCr
        ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, 0, (BARE[1],)),  # numbers of what ROCr leaves
        ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, 0, ()),
    ],
)
def test_the_gpu_of_a_rank_is_the_one_that_hip_shows(
    machine: Path, environ: dict[str, str], place: int, uuids: tuple[str, ...]
) -> None:
    in_sight = by_amdsmi(FakeAmdSmi(), machine / "devices", machine)
    assert devices_of_rank(in_sight, place, 1, environ, is_amd=True) == uuids


def test_an_amdsmi_without_its_library_is_named_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As amdsmi 7.0.2 does, whose output would be taken for that of the helper process.
    (tmp_path / "amdsmi.py").write_text("print('libamd_smi.so: cannot open shared object file')\n{}['libamd_smi.so']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with pytest.raises(NoDriver, match=r"does not load \(libamd_smi.so: cannot open .*\): install amd-smi-lib of ROCm"):
        load_amdsmi()
    assert capsys.readouterr() == ("", "")


def test_a_machine_with_amd_gpus_is_read_by_amdsmi(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc.preflight.facts.has_amd_gpus", lambda: True)
    monkeypatch.setattr("hpc.node_agent.gpus.has_amd_gpus", lambda: True)
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi())  # type: ignore[arg-type]
    assert [*driver_here().by_uuid()] == [*BARE]
    monkeypatch.setattr("hpc.preflight.facts._may_open", lambda gpu, dri: True)
    assert [gpu.uuid for gpu in gpus_in_sight()] == [*BARE]
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(Unread, match="amdsmi is not installed"):
        driver_here()
    with pytest.raises(NoDriver, match="amdsmi is not installed"):
        gpus_in_sight()


def read(readings: Readings) -> dict[str, float]:
    return dict(zip(readings.series, readings.read(), strict=True))


def test_telemetry_of_a_gpu_in_the_units_of_the_names() -> None:
    module = FakeAmdSmi()
    readings = Readings({"GPU": gpus([AMD_UUIDS[0]], AmdSmi(module))})
    module.ticks += 500
    module.slower |= {"ppt": 125, "hbm_thm": 500}
    assert read(readings) == {
        "gpu0.utilisation_percent": 97, "gpu0.memory_utilisation_percent": 41, "gpu0.gfx_clock_mhz": 2100,
        "gpu0.memory_clock_mhz": 1300, "gpu0.throttle_power_cap_share": 0.25, "gpu0.throttle_processor_hot_share": 0,
        "gpu0.throttle_socket_heat_share": 0, "gpu0.throttle_regulator_heat_share": 0,
        "gpu0.throttle_memory_heat_share": 1, "gpu0.power_w": 690, "gpu0.power_limit_w": 750, "gpu0.energy_j": 30.5,
        "gpu0.temperature_c": 61, "gpu0.memory_used_bytes": 283 << 20, "gpu0.ecc_corrected_errors": 3,
        "gpu0.ecc_uncorrected_errors": 1,
    }  # fmt: skip
    assert readings.absent == {}
    assert isnan(read(readings)["gpu0.throttle_power_cap_share"])  # no tick since


def test_a_gpu_before_mi300_has_no_shares_of_throttling() -> None:
    class Before(FakeAmdSmi):
        def amdsmi_get_gpu_metrics_info(self, gpu: int) -> dict[str, Any]:
            return dict.fromkeys(super().amdsmi_get_gpu_metrics_info(gpu), "N/A")

    readings = Readings({"GPU": gpus([AMD_UUIDS[0]], AmdSmi(Before()))})
    assert readings.absent["gpu0.throttle_power_cap_share"] == "amdsmi answers N/A"
    assert "gpu0.power_w" in readings.series
