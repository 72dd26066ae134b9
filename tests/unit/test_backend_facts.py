"""The JSON of BackendFacts; tests/mpi/test_contract.py compares that of every installed backend with earlier traces."""

from __future__ import annotations

from hpc.backends.training import CPU_DEVICE, BackendFacts, DeviceFacts, HorovodFacts

GPU = DeviceFacts(kind="gpu", name="H100", uuid=None, capability="9.0")


def test_horovods_facts_stand_among_the_others() -> None:
    horovod = HorovodFacts(
        version="0.28.1",
        built_against={"torch": "2"},
        mpi_libraries=["/mpi.so"],
        controller="mpi",
        operations="nccl",
    )
    facts = BackendFacts(
        versions={"torch": "2"}, device=GPU, devices=[GPU], transport="nccl", threads=2, options={}, horovod=horovod
    ).as_json()
    device = {"kind": "gpu", "name": "H100", "uuid": None, "capability": "9.0"}
    assert (facts["device"], facts["devices"]) == (device, [device])
    assert facts["versions"] == {"torch": "2", "horovod": "0.28.1"}
    assert {name: value for name, value in facts.items() if name.startswith("horovod")} == {
        "horovod_built_against": {"torch": "2"}, "horovod_mpi_libraries": ["/mpi.so"],
        "horovod_controller": "mpi", "horovod_operations": "nccl",
    }  # fmt: skip


def test_early_collectives_seen_later_are_in_the_json_taken_before() -> None:
    reasons: list[str] = []
    facts = BackendFacts(
        versions={}, device=CPU_DEVICE, transport="mpi", threads=1, options={}, early_collectives=reasons
    )
    json = facts.as_json()
    reasons.append("synchronised batch norm")
    assert json["meets_before_gradients"] == ["synchronised batch norm"]
