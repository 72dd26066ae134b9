"""A node for telemetry to read: its kernel's files in a folder, and a FAKE driver of GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpc.node_agent.sources import RankProcess, sources_of_node
from hpc.node_agent.telemetry import Readings

RANK = RankProcess(pid=17, cores=(0, 1), pid_namespace="pid:[1]")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

PROC = {
    # user nice system idle iowait irq softirq steal guest guest_nice, in ticks of 10 ms
    "stat": "cpu  1000 100 500 9000 200 10 40 30 0 0\ncpu0 400 0 200 300 50 0 20 10 0 0\n"
    "cpu1 300 0 100 400 0 0 0 0 0 0\n"
    "cpu2 1 1 1 1 1 1 1 1 0 0\nintr 123 4 5\nctxt 4711\n",
    "vmstat": "nr_free_pages 1\npswpout 7\npgmajfault 3\n",
    "net/dev": "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier "
    "compressed\n"
    "    lo:     100     1    0    0    0     0          0         0      100     1    0    0    0     0       0    0\n"
    "  eth0:   98084    21    2    3    0     0          0         0    11036    14    5    7    0     0       0    0\n"
    "eth0.12:  40    21    0    0    0     0          0         0    50    14    0    0    0     0       0          0\n"
    "  ifb0:       0   0    0    0    0     0          0         0        0     0    0    0    0     0       0    0\n",
    "net/snmp": "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm OutSegs RetransSegs InErrs\n"
    "Tcp: 1 990000 43265 0\n",
    "net/netstat": "TcpExt: TCPDSACKRecv TCPDSACKRecvSegs\nTcpExt: 40 41\nIpExt: InOctets\nIpExt: 7\n",
    # A process may call itself anything.
    "17/stat": "17 (py) 3 (x y) R 1 1 1 0 -1 4194304 1020 0 33 0 250 50 0 0 20 0 1 0 3593603 2998272 415 1 1 1 1 1\n",
    # The second last number but one of these are ticks of waiting for block devices.
    "17/task/17/stat": "17 (py) 3 (x y) R 1 1 1 0 -1 4194304 900 0 30 0 200 75 0 0 20 0 1 0 3593603 2998272 415 1 1 1 "
    "1 1 0 0 0 0 0 0 0 0 17 1 0 0 120 0 0\n",
    "17/task/17/children": "21 ",
    "21/stat": "21 (worker) S 17 1 1 0 -1 4194304 1 0 0 0 30 10 0 0 20 0 1 0 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 17 1 0\n",
    "17/status": "Name:\tpy\nState:\tR (running)\nCpus_allowed_list:\t1\n"
    "voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t34\n",
    "17/schedstat": "5000000000 2500000000 77\n",
    "17/cgroup": "4:memory:/\n0::/pod\n",
    "sys/kernel/task_delayacct": "1\n",
}
SYS = {
    "fs/cgroup/cpu.stat": "usage_usec 7\n",
    "fs/cgroup/pod/cpu.stat": "usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec 250000\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "250\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "1000\n",
    "class/infiniband/mlx5_0/ports/1/counters/symbol_error": "0\n",
    "class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "class/infiniband/rdmap0/ports/1/hw_counters/rx_bytes": "77\n",
    "class/infiniband/rdmap0/ports/1/hw_counters/tx_bytes": "88\n",
    "class/powercap/intel-rapl:0/name": "package-0\n",
    "class/powercap/intel-rapl:0/energy_uj": "900000\n",
    "class/powercap/intel-rapl:0/max_energy_range_uj": "999999\n",
    "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3000000\n",
    "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2400000\n",
    "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "2\n",
    "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "3\n",
    "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n",
    "devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "4\n",
}


class Node:
    """A node's /proc and /sys in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        for root, files in ((self.proc, PROC), (self.sys, SYS)):
            for name, text in files.items():
                self.put(root / name, text)
        self.put(self.proc / "self/mountinfo", f"35 31 0:31 / {self.sys}/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.namespace("pid:[1]")

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def namespace(self, name: str) -> None:
        link = self.proc / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def readings(self, *ranks: RankProcess) -> Readings:
        sources = sources_of_node(ranks or (RANK,), self.proc, self.sys)
        return Readings({what: source for what, source in sources.items() if what not in OF_THIS_MACHINE})

    def read(self, *ranks: RankProcess) -> dict[str, float]:
        node_readings = self.readings(*ranks)
        return dict(zip(node_readings.series, node_readings.read(), strict=True))


OF_THIS_MACHINE = ("telemetry", "link speed")
"""Sources that no folder stands in for."""

UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000")


class FakeNvml:
    """Stands in for the module pynvml: two GPUs, of which the second supports less. Values are made up."""

    class NVMLError(Exception):
        pass

    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0
    NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG = 0, 1, 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_LONG_LONG = 3, 4
    # An old version of the module: no counters of PCIe.
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 52, 38

    def __init__(self) -> None:
        self.lost = False
        self.requested: list[Any] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> str | bytes:
        return UUIDS[gpu].encode() if gpu else UUIDS[gpu]  # old versions give bytes

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return SimpleNamespace(gpu=97, memory=41)

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> int:
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return {self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return 0x4 | 0x40

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 690_500

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return 1_234_500

    def nvmlDeviceGetTemperature(self, gpu: int, kind: int) -> int:
        return 61

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(total=80 << 30, used=70 << 30)

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return 3 + kind

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return 16

    def nvmlDeviceGetPcieReplayCounter(self, gpu: int) -> int:
        return 2

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[int]) -> list[Any]:
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        self.requested = fields
        values = {52: SimpleNamespace(ullVal=1)}
        return [
            SimpleNamespace(nvmlReturn=0 if field in values else 3, valueType=3, value=values.get(field))
            for field in fields
        ]


AMD_UUIDS = ("GPU-0325447e39149eba", "GPU-8a1b00000000c0de")


class FakeAmdSmi:
    """Stands in for the module amdsmi: two GPUs, in another order than HIP's. MADE after its Python source (7.0.2, the
    release of ROCm 7.0) and its documentation; but for the first UUID no value came from a machine."""

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self) -> None:
        self.ticks, self.slower = 1000, {"ppt": 0, "hbm_thm": 0}

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_shut_down(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [1, 0]

    def amdsmi_get_gpu_enumeration_info(self, gpu: int) -> dict[str, Any]:
        return {
            "drm_render": 128 + 8 * gpu,
            "drm_card": gpu,
            "hsa_id": gpu + 2,
            "hip_id": gpu,
            "hip_uuid": AMD_UUIDS[gpu],
        }

    def amdsmi_get_gpu_asic_info(self, gpu: int) -> dict[str, Any]:
        serial = AMD_UUIDS[gpu].removeprefix("GPU-").upper()
        return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{serial}", "target_graphics_version": "gfx942"}

    def amdsmi_get_gpu_driver_info(self, gpu: int) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "2015/01/01 00:00"}

    def amdsmi_get_gpu_device_bdf(self, gpu: int) -> str:
        return ("0000:1b:00.0", "0000:9a:00.0")[gpu]

    def amdsmi_get_gpu_process_list(self, gpu: int) -> list[dict[str, Any]]:
        if gpu == 0:
            raise self.AmdSmiException("Error code:\n\t10 | AMDSMI_STATUS_NO_PERM - Permission Denied")
        return [{"name": "python3", "pid": 77, "mem": 2 << 30, "cu_occupancy": "N/A"}]

    def amdsmi_get_gpu_vram_usage(self, gpu: int) -> dict[str, int]:
        return {"vram_total": 196592, "vram_used": 283}

    def amdsmi_get_gpu_activity(self, gpu: int) -> dict[str, Any]:
        return {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"}

    def amdsmi_get_clock_info(self, gpu: int, kind: str) -> dict[str, Any]:
        return {"clk": {"gfx": 2100, "mem": 1300}[kind], "min_clk": 132, "max_clk": 2100, "clk_deep_sleep": "N/A"}

    def amdsmi_get_gpu_metrics_info(self, gpu: int) -> dict[str, Any]:
        return {
            "accumulation_counter": self.ticks,
            "prochot_residency_acc": 0, "ppt_residency_acc": self.slower["ppt"], "socket_thm_residency_acc": 0,
            "vr_thm_residency_acc": 0, "hbm_thm_residency_acc": self.slower["hbm_thm"],
        }  # fmt: skip

    def amdsmi_get_power_info(self, gpu: int) -> dict[str, Any]:
        return {"current_socket_power": 690, "average_socket_power": "N/A", "power_limit": 750}

    def amdsmi_get_power_cap_info(self, gpu: int) -> dict[str, int]:
        return {"power_cap": 750_000_000, "default_power_cap": 750_000_000}

    def amdsmi_get_energy_count(self, gpu: int) -> dict[str, Any]:
        return {"energy_accumulator": 2_000_000, "counter_resolution": 15.25, "timestamp": 1}

    def amdsmi_get_temp_metric(self, gpu: int, sensor: str, metric: str) -> int:
        return 61

    def amdsmi_get_gpu_total_ecc_count(self, gpu: int) -> dict[str, int]:
        return {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0}
