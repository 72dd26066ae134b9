"""The published result blocks, reproduced from logs of those speeds; where a document is wrong, the right number."""

from __future__ import annotations

import json

import pytest

from parse.summarize import main
from tests.unit.logs import made

NGC_PYTORCH = {
    "1n1g": {1: 366.54, 2: 366.27, 3: 365.81, 4: 366.14, 5: 365.51},
    "1n4g": {1: 1449.08, 2: 1448.06, 3: 1445.03, 4: 1447.61, 5: 1448.58},
    "1n8g": {1: 2806.66, 2: 2833.72, 3: 2800.71, 4: 2808.11, 5: 2803.56},
}
PACKED = {"1_3": 672.63, "4_6": 682.28, "7_9": 688.8, "10_12": 701.07, "13_15": 674.42}
PADDLE = {
    "1n1g": {1: 354.32, 2: 354.71, 3: 353.04, 4: 352.08, 5: 352.07, 6: 352.39},
    "1n2g": {1: 661.22, 2: 641.5, 3: 648.13, 4: 637.27, 5: 647.83, 6: 621.58},
    "1n4g": {1: 1353.06, 2: 1361.98, 3: 1363.45, 4: 1354.14, 5: 1359.48, 6: 1357.79},
    "1n8g": {1: 2612.02, 2: 2624.97, 3: 2624.23, 4: 2636.74, 5: 2625.79, 6: 2634.72},
    "2n8g": {1: 4894.51, 2: 4906.09, 3: 4919.23, 4: 4892.93, 5: 4882.73, 6: 4896.04},
    "4n8g": {1: 9256.12, 2: 9349.71, 3: 9359.18, 4: 9353.71, 5: 9346.64, 6: 9306.93},
}
PLSC = {
    "1n1g": {1: 397.44, 2: 398.05, 3: 398.98, 4: 397.64, 5: 397.78},
    "1n4g": {1: 1555.18, 2: 1534.62, 3: 1540.66, 4: 1539.66, 5: 1535.04},
    "1n8g": {1: 2536.04, 2: 2545.3, 3: 2563.28, 4: 2554.13, 5: 2542.14},
    "2n8g": {1: 5950.34, 2: 5953.84, 3: 5982.75, 4: 5961.68, 5: 5934.43},
    "4n8g": {1: 11165.17, 2: 11109.91, 3: 11084.53, 4: 11077.58, 5: 10997.67},
}
CENT = 0.0101
"""Two decimals: the documents round medians of rounded numbers once more."""


def devices(case):
    nodes, each = case.rstrip("g").split("n")
    return int(nodes) * int(each)


def result(capsys, *argv):
    assert main([*map(str, argv), "--format", "dlperf"]) == 0
    return json.loads(capsys.readouterr().out)["r50"]


def summary(capsys, *argv):
    assert main([*map(str, argv), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def expect(by_case, published):
    for case, (average, median, speedup) in published.items():
        assert by_case[case]["average_speed"] == pytest.approx(average, abs=CENT), case
        assert by_case[case]["median_speed"] == pytest.approx(median, abs=CENT), case
        assert by_case[case]["speedup"] == pytest.approx(speedup, abs=CENT), case
        assert by_case[case]["batch_size_per_device"] == 128
    assert set(by_case) == set(published)


@pytest.fixture
def ngc_pytorch(tmp_path):
    root = tmp_path / "ngc" / "pytorch"
    for case, runs in NGC_PYTORCH.items():
        count = devices(case)
        for run, speed in runs.items():
            text = made.ngc_pytorch(made.steps(speed, 128 * count), batch=128, devices=count)
            made.put(root, f"{case}/r50_b128_fp32_{run}.log", text)
    return root


def test_000_with_clean_runs_alone(ngc_pytorch, capsys):
    """The document has 2014.63, 2802.14 and 7.65 for 1n8g, with packed jobs among its runs."""
    for name, speed in PACKED.items():
        text = made.ngc_pytorch(made.steps(speed, 256), batch=128, devices=2)
        made.put(ngc_pytorch, f"1n8g/r50_b128_fp32_{name}.log", text)
    expect(result(capsys, ngc_pytorch), {
        "1n1g": (366.05, 366.14, 1.0), "1n4g": (1447.67, 1448.06, 3.95), "1n8g": (2810.55, 2806.66, 7.67),
    })  # fmt: skip
    everything = json.dumps(summary(capsys, ngc_pytorch))
    for name in PACKED:
        assert f"r50_b128_fp32_{name}.log" in everything


@pytest.mark.parametrize("stamped", [False, True])
def test_002(tmp_path, capsys, stamped):
    root = tmp_path / "logs" / "paddle" / "resnet50" / "bz128"
    for case, runs in PADDLE.items():
        count = 128 * devices(case)
        for run, speed in runs.items():
            text = made.paddle(made.steps(speed, count), batch=count, stamped=stamped)
            made.put(root, f"{case}/r50_b128_fp32_{run}.log", text)
    by_case = result(capsys, root, *(["--speed", "protocol"] if stamped else []))
    expect(by_case, {
        "1n1g": (353.1, 352.72, 1.0), "1n2g": (642.92, 644.66, 1.83), "1n4g": (1358.32, 1358.64, 3.85),
        "1n8g": (2626.41, 2625.38, 7.44), "2n8g": (4898.59, 4895.27, 13.88), "4n8g": (9328.72, 9348.17, 26.5),
    })  # fmt: skip


def test_003_and_its_superlinear_step(tmp_path, capsys):
    root = tmp_path / "logs" / "paddle-plsc" / "arcface" / "bz128"
    for case, runs in PLSC.items():
        count = devices(case)
        for run, speed in runs.items():
            text = made.plsc(made.steps(speed, 128 * count, 161), batch=128 * count, trainers=count)
            made.put(root, f"{case}/r50_b128_fp32_{run}.log", text)
    expect(result(capsys, root, "--speed", "protocol"), {
        "1n1g": (397.98, 397.78, 1.0), "1n4g": (1541.03, 1539.66, 3.87), "1n8g": (2548.18, 2545.3, 6.4),
        "2n8g": (5956.61, 5953.84, 14.97), "4n8g": (11086.97, 11084.53, 27.87),
    })  # fmt: skip
    alarms = {point["case"]: [alarm["text"] for alarm in point["alarms"]] for point in summary(capsys, root)["results"]}
    assert any("speed per device rises with the devices" in text for text in alarms["2n8g"])
