"""Who comes last to collectives, by kernel times and clocks, of recordings with known delays; lost records."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse.arrivals.flight_dump import read_flight_dumps
from parse.arrivals.inspector import is_inspector, read_inspector
from parse.arrivals.profiles import read_profiles
from parse.arrivals.result import ArrivalEvidence, ArrivalsResult, arrivals
from parse.arrivals.text import missing, sentence
from parse.collective_trace import main
from tests.unit.arrivals.recordings import (
    MS,
    Hosts,
    LateNs,
    Model,
    flight_dumps,
    inspector,
    profiles,
    tensor_and_data_parallel,
)

TWO_HOSTS, SINGLE_HOST = Hosts(per_host=4), Hosts(per_host=64)


def of_rank_3(rank: int, number: int) -> int:
    return 20 * MS if rank == 3 else 0


def counts(result: ArrivalsResult) -> dict[str, int]:
    return {rank.rank: rank.last for rank in result.ranks if rank.last}


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("off_ns", [0, 7 * MS, -500 * MS])
def test_a_late_rank_is_known_by_kernel_times_whatever_the_clocks_show(tmp_path, verbose, off_ns):
    model = Model(late_ns=of_rank_3)
    files = inspector(tmp_path, model.kernels(), Hosts(per_host=4, off_ns=off_ns), verbose=verbose)
    result = arrivals(read_inspector(files))
    assert counts(result) == {"rank 3": 60}
    first = result.ranks[0]
    assert first.wait == pytest.approx(20.0, abs=0.1)
    assert first.sole == pytest.approx(60 * 20.0, rel=0.01)
    assert first.bound == pytest.approx(0.41, abs=0.03)
    assert (first.host, first.waits_itself, result.hosts) == ("node0", 0.0, 2)
    assert result.groups[0].decided == {ArrivalEvidence.KERNELS: 60, ArrivalEvidence.CLOCK: 0}
    assert sentence(result).startswith("rank 3 on node0 comes last to 60 of 60 collectives: the others wait 20.0")


def test_profiles_of_torch_say_the_same(tmp_path):
    model = Model(late_ns=of_rank_3)
    result = arrivals(read_profiles(profiles(tmp_path, model.kernels(), TWO_HOSTS, first=41)))
    assert counts(result) == {"rank 3": 60}
    assert result.ranks[0].wait == pytest.approx(20.0, abs=0.1)
    assert result.groups[0].group == "default_pg (group 0) [0, 1, 2, 3, 4, 5, 6, 7]"


def edited(paths: Sequence[Path], edit: Callable[[int, int, dict[str, Any]], None]) -> Sequence[Path]:
    """The profiles after an edit of each kernel, by rank and number."""
    for rank, path in enumerate(paths):
        page = json.loads(path.read_text())
        for number, event in enumerate(page["traceEvents"][1:]):
            edit(rank, number, event)
        path.write_text(json.dumps(page))
    return paths


def test_kernels_of_other_libraries_are_known_by_what_torch_says_of_them(tmp_path):
    def of_mscclpp(rank: int, number: int, event: dict[str, Any]) -> None:
        event["name"] = "void mscclpp::allreduce7<__half>(...)" if number % 2 else event["name"]

    files = edited(profiles(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS), of_mscclpp)
    assert counts(arrivals(read_profiles(files))) == {"rank 3": 60}


def sized(rank: int, number: int, event: dict[str, Any]) -> None:
    """Sizes that repeat after five calls, as those of a step's buckets do."""
    event["args"] |= {"In msg nelems": 1000 + event["args"]["External id"] % 5, "Out msg nelems": 0}


def test_calls_without_numbers_are_paired_by_what_they_are(tmp_path):
    """Rank 6 lacks the first two, rank 2 the last one: what all have is judged, what is left out is named."""
    kernels = Model(late_ns=of_rank_3).kernels()

    def lacks(rank: int, number: int) -> bool:
        return (rank == 6 and number < 2) or (rank == 2 and number == 59)

    files = edited(profiles(tmp_path, kernels, TWO_HOSTS, with_seq=False, skipped=lacks), sized)
    result = arrivals(read_profiles(files))
    assert counts(result) == {"rank 3": 57}
    assert [(each.rank, each.numbers) for each in result.lost] == [("rank 2", (59,)), ("rank 6", (0, 1))]
    assert any("by order and size, rank 6 begins 2 calls later" in remark for remark in result.remarks)


def test_equal_calls_of_which_one_is_missing_are_paired_by_one_clock_alone(tmp_path, capsys):
    kernels = Model(late_ns=of_rank_3).kernels()

    def lacks(rank: int, number: int) -> bool:
        return rank == 6 and number == 0

    single = profiles(tmp_path / "single", kernels, SINGLE_HOST, with_seq=False, skipped=lacks)
    assert counts(arrivals(read_profiles(single))) == {"rank 3": 59}
    profiles(tmp_path / "two", kernels, TWO_HOSTS, with_seq=False, skipped=lacks)
    assert main([str(tmp_path / "two")]) == 1
    assert "the 59 calls of rank 6 are no certain piece of the 60 of rank 0" in capsys.readouterr().err


def test_kernels_without_a_process_group_are_those_of_all_ranks_on_one_stream(tmp_path, capsys):
    def bare(rank: int, number: int, event: dict[str, Any]) -> None:
        del event["args"]

    def on_streams(rank: int, number: int, event: dict[str, Any]) -> None:
        event["tid"] = number % 2

    files = edited(profiles(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS), bare)
    result = arrivals(read_profiles(files))
    assert counts(result) == {"rank 3": 60}
    assert any("paired by order alone, equal on all ranks" in remark for remark in result.remarks)
    edited(files, on_streams)
    assert main([str(tmp_path)]) == 1
    assert "kernels on several streams without a process group" in capsys.readouterr().err


@pytest.mark.parametrize("hosts", [SINGLE_HOST, TWO_HOSTS])
def test_amounts_that_differ_by_rank_are_judged_by_one_clock_alone(tmp_path, hosts):
    """As of experts: all send as much, and receive what others send them; kernel times differ for that, too."""

    def uneven(rank: int, number: int, event: dict[str, Any]) -> None:
        event["args"] |= {"Collective name": "all_to_allv", "Out msg nelems": 6_250_000 + rank * 1000}

    for with_seq in (True, False):
        folder = tmp_path / f"{with_seq}"
        kernels = Model(late_ns=of_rank_3).kernels()
        result = arrivals(read_profiles(edited(profiles(folder, kernels, hosts, with_seq=with_seq), uneven)))
        assert result.groups[0].complete == 60
        assert counts(result) == ({"rank 3": 60} if hosts is SINGLE_HOST else {})
        assert any("in 60 × all-to-all" in remark for remark in result.remarks)


def test_times_with_a_fraction_are_read(tmp_path):
    files = inspector(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS)
    for path in files:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record["coll_perf"]["coll_exec_time_us"] += 0.5
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    recording = read_inspector(files)
    assert {int(calls.duration_ns[0]) % 1000 for calls in recording.calls.values()} == {500}
    assert counts(arrivals(recording)) == {"rank 3": 60}


# Torch's flight recorder.


@pytest.mark.parametrize("packed", [True, False])
def test_dumps_of_torchs_flight_recorder(tmp_path, packed, capsys):
    kernels = Model(late_ns=of_rank_3).kernels()
    assert counts(arrivals(read_flight_dumps(flight_dumps(tmp_path / "a", kernels, packed=packed)))) == {"rank 3": 60}
    flight_dumps(tmp_path / "b", kernels, packed=packed, timed=False, reached=40)
    assert main([str(tmp_path / "b")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot tell who comes last to any of 40 collectives: no times of all ranks are recorded" in out
    assert "rank 7 has no record of 1 × all-reduce of default_pg (group 0)" in out
    assert "rank 0 has not completed 1 collective; the first: all-reduce 40 of default_pg (group 0)" in out
    assert "these dumps of torch's flight recorder have no durations" in out
    flight_dumps(tmp_path / "b", kernels, packed=not packed, timed=False, reached=40)  # the same as the other kind
    assert main([str(tmp_path / "b")]) == 0
    flight_dumps(tmp_path / "b", kernels, packed=not packed, timed=False, reached=41)
    assert main([str(tmp_path / "b")]) == 1
    assert "are both of rank" in capsys.readouterr().err


class _Runs:
    """Would leave a folder if it was unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_no_dump_runs_code(tmp_path, capsys, protocol):
    (path, *_) = flight_dumps(tmp_path / "dumps", Model(ranks=2, count=3).kernels())
    dump = pickle.loads(path.read_bytes())  # noqa: S301  # it was written here
    path.write_bytes(pickle.dumps(dump, protocol))
    assert main([str(path.parent)]) == 0
    path.write_bytes(pickle.dumps(dump | {"comm_lib_version": _Runs(tmp_path / "ran")}, protocol))
    assert main([str(path.parent)]) == 1
    assert "no whole dump of torch's flight recorder" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_dump_is_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("hostile")
    packed = data.draw(st.booleans())
    for path in flight_dumps(folder, Model(ranks=2, count=3).kernels(), packed=packed):
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.integers(0, len(content)))
            end = begin + data.draw(st.integers(0, 8))
            content[begin:end] = data.draw(st.binary(max_size=6) | st.just(bytes(content[begin : begin + 40])))
        path.write_bytes(content)
    assert main([str(folder)]) in (0, 1)


def test_what_is_shorter_than_the_collective_takes_is_known_by_one_clock_alone(tmp_path):
    model = Model(late_ns=lambda rank, number: 200_000 if rank == 5 else 0)
    of_two = arrivals(read_inspector(inspector(tmp_path / "two", model.kernels(), TWO_HOSTS, verbose=True)))
    assert counts(of_two) == {}
    assert sentence(of_two).startswith("cannot tell who comes last to any of 60 collectives")
    silent = arrivals(read_inspector(inspector(tmp_path / "silent", model.kernels(), SINGLE_HOST)))
    assert counts(silent) == {}
    one_clock = arrivals(read_inspector(inspector(tmp_path / "one", model.kernels(), SINGLE_HOST, verbose=True)))
    assert (
        set(counts(one_clock)) == {"rank 5"}
        and one_clock.groups[0].decided[ArrivalEvidence.CLOCK] == one_clock.ranks[0].last > 50
    )
    assert one_clock.ranks[0].wait == pytest.approx(0.2, abs=0.04)


def test_a_given_bound_of_the_clocks_lets_begins_be_compared_across_hosts(tmp_path):
    model = Model(late_ns=lambda rank, number: 200_000 if rank == 5 else 0)
    files = inspector(tmp_path, model.kernels(), Hosts(per_host=4, off_ns=5_000), verbose=True)
    recording = read_inspector(files)
    assert counts(arrivals(recording)) == {}
    assert set(counts(arrivals(recording, 10_000))) == {"rank 5"}
    assert counts(arrivals(recording, MS)) == {}


def test_no_late_rank_is_none(tmp_path):
    result = arrivals(read_inspector(inspector(tmp_path, Model(count=300).kernels(), TWO_HOSTS, verbose=True)))
    assert counts(result) == {}
    chance = Model(count=300, late_ns=lambda rank, number: 20 * MS if rank == number * 7919 % 8 else 0)
    result = arrivals(read_inspector(inspector(tmp_path / "chance", chance.kernels(), TWO_HOSTS)))
    assert sum(counts(result).values()) == 300
    assert sentence(result).startswith("no rank stands out: the last one is known in 300 of 300 collectives")


def test_two_late_ranks_cost_only_what_is_beyond_the_other(tmp_path):
    model = Model(late_ns=lambda rank, number: {2: 20 * MS, 6: 15 * MS}.get(rank, 0))
    result = arrivals(read_inspector(inspector(tmp_path, model.kernels(), TWO_HOSTS)))
    assert counts(result) == {"rank 2": 60}
    assert result.ranks[0].sole == pytest.approx(60 * 5.0, rel=0.02)
    assert result.ranks[0].wait == pytest.approx((6 * 20 + 5) / 7, rel=0.02)


def test_lost_records_are_named_and_nobody_is_last_without_them(tmp_path):
    model = Model(late_ns=of_rank_3)
    files = inspector(tmp_path, model.kernels(), TWO_HOSTS, lost=lambda rank, number: rank == 6 and 10 <= number < 14)
    result = arrivals(read_inspector(files))
    assert counts(result) == {"rank 3": 56}
    (lost,) = result.lost
    assert (lost.rank, lost.count, lost.numbers, lost.all) == ("rank 6", 4, (10, 11, 12, 13), False)
    without = arrivals(read_inspector([path for path in files if "pid1006" not in path.name]))
    assert counts(without) == {}
    assert sentence(without) == "cannot tell who comes last: of no collective the records of all ranks are there"
    assert any("its rank 6 has no record of all-reduce" in text for text in missing(without))


def test_functions_number_their_collectives_each_by_itself(tmp_path):
    late, even = Model(late_ns=of_rank_3), Model(seed=2)
    inspector(tmp_path, late.kernels(), TWO_HOSTS, function="AllReduce")
    files = inspector(tmp_path, even.kernels(), TWO_HOSTS, function="ReduceScatter")
    groups = {group.operation: group for group in arrivals(read_inspector(files)).groups}
    assert (groups["all-reduce"].complete, groups["reduce-scatter"].complete) == (60, 60)
    assert sum(groups["all-reduce"].decided.values()) == 60 and sum(groups["reduce-scatter"].decided.values()) == 0


def test_operations_that_do_not_wait_for_all_say_nothing(tmp_path):
    files = inspector(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS, function="Broadcast")
    assert sentence(arrivals(read_inspector(files))).startswith("cannot tell who comes last: no collective that waits")


def test_a_rank_that_waits_elsewhere_says_so(tmp_path):
    """Rank 3 is late to all, because it waits in a group of two for rank 1."""
    pair = Model(ranks=2, late_ns=lambda rank, number: 20 * MS if rank == 1 else 0)
    files = inspector(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS)
    recorded = pair.kernels()
    for place, rank in ((0, 3), (1, 1)):
        of_pair = inspector(tmp_path / f"pair{place}", recorded, TWO_HOSTS, comm="0xpair")[place]
        text = of_pair.read_text().replace(f'"pid":{1000 + place}', f'"pid":{1000 + rank}')
        files[rank].write_text(files[rank].read_text() + text)
    result = arrivals(read_inspector(files))
    assert counts(result) == {"rank 3": 60, "rank 1": 60}
    of_rank = {rank.rank: rank for rank in result.ranks}
    assert of_rank["rank 3"].waits_itself == pytest.approx(60 * 20.0, rel=0.02)
    assert of_rank["rank 1"].waits_itself == pytest.approx(60 * 20.0, rel=0.02)


@pytest.mark.parametrize("verbose", [True, False])
def test_a_rank_that_waited_for_another_in_its_pair_comes_behind_it(tmp_path, verbose):
    """Rank 5 is late to its pair, so that both are late to their groups of four, rank 4 for the sake of rank 5."""
    for group, kernels in tensor_and_data_parallel(late_rank=5, late_ns=20 * MS).items():
        for place, path in enumerate(
            inspector(tmp_path / "each", kernels, TWO_HOSTS, comm=f"0x{group}", verbose=verbose)
        ):
            rank, text = group[place], path.read_text()
            path.unlink()
            text = text.replace(f'"pid":{1000 + place}', f'"pid":{1000 + rank}').replace(
                f'"hostname":"{TWO_HOSTS.name(place)}"', f'"hostname":"{TWO_HOSTS.name(rank)}"'
            )
            with (tmp_path / f"{TWO_HOSTS.name(rank)}-pid{1000 + rank}.log").open("a") as file:
                file.write(text)
    result = arrivals(read_inspector(sorted(tmp_path.glob("*.log"))))
    of_rank = {rank.rank: rank for rank in result.ranks}
    fifth, fourth = of_rank["node1 pid 1005"], of_rank["node1 pid 1004"]
    assert (fifth.last, fourth.last) == (80, 40)
    assert fourth.waits_for == "node1 pid 1005"
    assert result.ranks[0] is fifth
    assert fifth.waits_itself < fourth.waits_itself == pytest.approx(fourth.sole, rel=0.1)


def test_a_clock_that_contradicts_decides_nothing(tmp_path):
    files = inspector(tmp_path, Model(late_ns=of_rank_3).kernels(), SINGLE_HOST, verbose=True)
    path = files[3]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for channel in record["coll_perf"]["event_trace_ts"]["kernel_events"]:
            channel["kernel_start_ts"] -= 40_000
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = arrivals(read_inspector(files))
    assert counts(result) == {} and result.groups[0].contradicted == 60


def test_files_of_two_runs_and_others_are_refused(tmp_path, capsys):
    kernels = Model(count=3).kernels()
    inspector(tmp_path / "a", kernels, TWO_HOSTS)
    inspector(tmp_path / "b", kernels, Hosts(per_host=2))
    assert main([str(tmp_path)]) == 1
    assert "Are these the files of one run?" in capsys.readouterr().err
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "train.log").write_text("step 1\n")
    assert main([str(tmp_path / "c")]) == 1
    assert "none of 1 files is of NCCL Inspector" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 1


def test_what_cannot_be_read_is_named(tmp_path, capsys, monkeypatch):
    inspector(tmp_path, Model(count=3).kernels(), TWO_HOSTS)
    os.mkfifo(tmp_path / "node1-pid1.log")
    assert main([str(tmp_path)]) == 0
    assert "node1-pid1.log: cannot be read" in capsys.readouterr().err

    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: Permission denied\n"


def test_cut_off_and_foreign_lines_are_counted(tmp_path):
    files = inspector(tmp_path, Model(count=5).kernels(), TWO_HOSTS)
    text = files[0].read_text()
    files[0].write_text(text + text.splitlines()[0][:-40] + "\nNCCL INFO something\n")
    result = arrivals(read_inspector(files))
    assert result.groups[0].complete == 5
    assert any("lines that are no whole record" in remark for remark in result.remarks)


def test_more_profiles_than_a_group_has_ranks_are_of_several_runs(tmp_path, capsys):
    for path in profiles(tmp_path, Model(ranks=3, count=3).kernels(), SINGLE_HOST):
        page = json.loads(path.read_text())
        for event in page["traceEvents"]:
            event.get("args", {}).update({"Group size": 2, "Process Group Ranks": "[0, 1, ...]"})
        path.write_text(json.dumps(page))
    assert main([str(tmp_path)]) == 1
    assert "Are they of one run?" in capsys.readouterr().err


VALUES = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_record_is_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("hostile")
    for path in inspector(folder, Model(ranks=2, count=3).kernels(), SINGLE_HOST, verbose=True):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            part = record[data.draw(st.sampled_from(["header", "metadata", "coll_perf"]))]
            part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([str(folder)]) in (0, 1)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_profile_is_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("hostile")
    with_seq = data.draw(st.booleans())
    for path in profiles(folder, Model(ranks=2, count=3).kernels(), SINGLE_HOST, with_seq=with_seq):
        page = json.loads(path.read_text())
        for event in page["traceEvents"][1:]:
            part = data.draw(st.sampled_from([event, event["args"], page]))
            part[data.draw(st.sampled_from(sorted(set(part) - {"args", "traceEvents"})))] = data.draw(VALUES)
        path.write_text(json.dumps(page))
    assert main([str(folder)]) in (0, 1)


def _of_table(late: list[list[int]]) -> LateNs:
    return lambda rank, number: late[number][rank]


def test_bounds_hold_over_models(tmp_path):
    """Whoever is called last is the last one, for delays around what the collective takes."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        late = rng.integers(0, 900_000, size=(60, 8))
        model = Model(seed=seed, drain_ns=200_000, late_ns=_of_table(late.tolist()))
        kernels = model.kernels()
        true_last = [max(range(8), key=lambda rank: its[rank].begin_ns) for its in kernels]
        for verbose in (False, True):
            folder = tmp_path / f"{seed}{verbose}"
            result = arrivals(read_inspector(inspector(folder, kernels, TWO_HOSTS, verbose=verbose)))
            for rank in result.ranks:
                assert rank.last <= true_last.count(int(rank.rank.removeprefix("rank ")))


def test_records_over_several_lines(tmp_path):
    files = inspector(tmp_path, Model(count=20).kernels(), TWO_HOSTS, verbose=True)
    calls = read_inspector(files).calls
    for path in files:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record, indent=2) + "\n" for record in records))
    assert is_inspector(files[0])
    spread = read_inspector(files).calls
    assert {key: its.duration_ns.tolist() for key, its in spread.items()} == {
        key: its.duration_ns.tolist() for key, its in calls.items()
    }


def test_a_communicator_of_more_ranks_than_any_machine_has_is_left_out(tmp_path):
    files = inspector(tmp_path, Model(count=5).kernels(), TWO_HOSTS)
    line = files[0].read_text().splitlines()[0].replace("0x7f8c496ae9f661", "other")
    files[0].write_text(files[0].read_text() + line.replace('"n_ranks":8', '"n_ranks":1048577') + "\n")
    recording = read_inspector(files)
    assert [*recording.groups] == ["0x7f8c496ae9f661"]
    assert any("more than 1,048,576 ranks" in reason for reason in recording.left_out)


@pytest.mark.parametrize("field", ["Seq", "In msg nelems", "Group size"])
def test_numbers_of_profiles_that_no_collective_has_are_none(tmp_path, capsys, field):
    for path in profiles(tmp_path, Model(ranks=2, count=3).kernels(), SINGLE_HOST):
        page = json.loads(path.read_text())
        for event in page["traceEvents"]:
            if field in event.get("args", {}):
                event["args"][field] = 1 << 62
                event["args"]["Process Group Ranks"] = "[0, 1, ...]"
        path.write_text(json.dumps(page))
    assert main([str(tmp_path)]) == int(field == "Group size")


@pytest.mark.parametrize("make", [inspector, profiles])
def test_the_command(tmp_path, capsys, make):
    make(tmp_path, Model(late_ns=of_rank_3).kernels(), TWO_HOSTS)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "rank 3 on node0 comes last to 60 of 60 collectives" in " ".join(out.split())
    assert "clocks of 2 hosts are not compared" in " ".join(out.split())
    assert main([str(tmp_path), "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["ranks"][0]["rank"] == "rank 3" and page["lost"] == []
