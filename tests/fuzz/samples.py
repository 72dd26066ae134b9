"""Short logs of every family, written from the programs' format strings, and where in a plain text their steps are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tests.fuzz.language_samples import SAMPLES
from tests.fuzz.sample import BATCH, NUMBER, RATE, STEP_S, Sample, clock, comma, sample, unix
from tests.fuzz.vision_samples import VISION


def _ngc_pytorch(steps: int) -> Iterator[str]:
    yield (
        f"DLL {clock(0)} - PARAMETER data : /data/image  arch : resnet50  epochs : 1  batch_size : 128  "
        "optimizer_batch_size : -1  print_freq : 1  amp : True  fp16 : False  world_size : 8  seed : None"
    )
    for step in range(1, steps + 1):
        yield (
            f"DLL {clock(step)} - Epoch: 0 Iteration: {step}  train.loss : 7.09304  train.total_ips : {RATE:.2f} img/s"
        )
    at = f"DLL {clock(steps)} - "
    yield at + f"Epoch: 0 Iteration: {steps} Validation Iteration: 10  val.top1 : 76.24 % val.top5 : 93.09 %"
    yield at + "Summary: train.loss : 6.55774  train.total_ips : 854.37 img/s val.top1 : 76.63 % "


def _ngc_pytorch_json(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        content = {
            "timestamp": f"{unix(step):.6f}", "datetime": str(clock(step)), "elapsedtime": f"{step}.5",
            "type": "LOG", "step": [0, step], "data": {"train.loss": 7.09, "train.total_ips": RATE},
        }  # fmt: skip
        yield "DLLL " + json.dumps(content)


def _tagged(steps: int) -> Iterator[str]:
    for number, line in enumerate(_ngc_pytorch(steps)):
        for rank in (1, 0):
            text = line if rank == 0 else "NCCL INFO Channel 00 : 0[1a] -> 1[1b] via P2P/IPC"
            yield f"{clock(number):%a %b %e %H:%M:%S %Y}[1,{rank}]<stdout>:{text}"


def _pytorch_imagenet(steps: int) -> Iterator[str]:
    yield from ("Use GPU: 0 for training", "Use GPU: 1 for training", "=> creating model 'resnet50'")
    for step in range(steps):
        for _ in range(2):
            yield (
                f"Epoch: [0][{step:4d}/5005]\tTime {STEP_S:6.3f} ( 2.123)\tData  0.106 ( 0.077)\t"
                "Loss 1.1494e+01 (1.8538e+01)\tAcc@1   1.56 (  2.23)\tAcc@5  11.72 ( 10.94)"
            )
    yield "Test: [  0/196]\tTime  3.2 ( 3.2)\tLoss 7.0 (7.0)\tAcc@1   0.1 (  0.1)"
    yield " * Acc@1 76.130 Acc@5 92.862"


def _paddle(steps: int) -> Iterator[str]:
    yield from ("-----------  Configuration Arguments -----------", "batch_size : 1024", "use_fp16 : False")
    for step in range(steps):
        yield (
            f"{comma(step)}-INFO: [Pass 0, train batch {step}] \tloss 7.10000, acc1 0.00000, acc5 0.00000, "
            f"lr 0.00100, elapse {STEP_S:.4f} sec"
        )


def _paddle_newer(steps: int) -> Iterator[str]:
    for step in range(steps):
        yield (
            f"{comma(step)}-INFO: [Pass 0, train batch {step}] \tloss 7.10000, lr 0.10000, "
            f"batch_cost {STEP_S:.5f} sec, reader_cost 0.00069 sec, ips {RATE:.5f} images/sec"
        )


def _plsc(steps: int) -> Iterator[str]:
    yield "INFO 2021-03-12 17:14:50,123 entry.py:300] trainer_id: 0, num_trainers: 8"
    for step in range(steps):
        for _ in range(2):
            yield (
                f"INFO {comma(10 * step)} entry.py:1022] Pass:0 batch:{10 * step} lr:0.10000000 loss:44.123456 "
                f"qps:{RATE:.2f}"
            )


def _plsc_newer(steps: int) -> Iterator[str]:
    yield f"Training: {comma(0)} - batch_size: 128"
    for step in range(1, steps + 1):
        yield (
            f"Training: {comma(10 * step)} - loss 43.9714, lr: 0.200000, epoch: 0, step: {10 * step}, "
            f"eta: 7.52 hours, throughput: {RATE:.2f} imgs/sec"
        )
    yield f"Training: {comma(10 * steps)} - Save model to ./out."


def _ngc_tensorflow(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"DLL {clock(step)} - (0, {step}) imgs_per_sec : {RATE!r}  cross_entropy : 3.44898  l2_loss : 0.66942  "
            "total_loss : 4.11840  learning_rate : 0.10318"
        )
    yield f"DLL {clock(steps)} -  train_throughput : 1149.207"


def _tf2_official(steps: int) -> Iterator[str]:
    for step in range(100, 100 * (steps + 1), 100):
        at = clock(step)
        yield (
            f"I{at:%m%d %H:%M:%S.%f} 139725706671936 keras_utils.py:145] TimeHistory: {100 * STEP_S:.2f} seconds, "
            f"{RATE:.2f} examples/second between steps {step - 100} and {step}"
        )


def _ngc_mxnet(steps: int) -> Iterator[str]:
    yield "slurmstepd: pyxis: importing docker image ..."
    for step in range(steps):
        for _ in range(2):
            yield (
                f"{comma(step)}:INFO: Epoch[0] Batch [{max(step - 1, 0)}-{step}]\tSpeed: {RATE:.2f} samples/sec"
                "\tLR: 0.256"
            )


def _gluon(steps: int) -> Iterator[str]:
    for step in range(20, 20 * (steps + 1), 20):
        yield f"INFO:root:Epoch[0] Batch [{step}]\tSpeed: {RATE:.2f} samples/sec\taccuracy=0.000000"


def _partial_fc(steps: int) -> Iterator[str]:
    for step in range(20, 20 * (steps + 1), 20):
        yield (f"rank-id:0:{comma(step)}-Iter:{step} Rank:{RATE / 8:.2f} it/sec Total:{RATE:.2f} it/sec [0][loss]:0.01")


def _oneflow(steps: int) -> Iterator[str]:
    yield from ("batch_size_per_device = 128", "gpu_num_per_node = 8", "num_nodes = 1", "model = resnet50")
    for step in range(1, steps + 1):
        yield (
            f"train: epoch 0, iter {step}, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: {RATE:.3f} "
            f"{unix(step)!r}"
        )


def _oneflow_older(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield f"train: epoch 0, iter {step}, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: {RATE:.3f}"


def _mllog_line(step: int, key: str, value: object, **metadata: object) -> str:
    content = {
        "namespace": "", "time_ms": int(unix(step) * 1000), "event_type": "POINT_IN_TIME", "key": key,
        "value": value, "metadata": {"file": "fit.py", "lineno": 1, **metadata},
    }  # fmt: skip
    return ":::MLLOG " + json.dumps(content)


def _mllog(steps: int) -> Iterator[str]:
    yield _mllog_line(0, "global_batch_size", BATCH)
    yield _mllog_line(0, "train_samples", 1281167)
    for block in range(steps):
        yield _mllog_line(400 * block, "block_start", None, first_epoch_num=4 * block + 1, epoch_count=4)
        yield _mllog_line(400 * block + 350, "eval_start", None, epoch_num=4 * block + 4)
        yield _mllog_line(400 * block + 360, "eval_accuracy", 0.1 + block / 1000, epoch_num=4 * block + 4)
        yield _mllog_line(400 * block + 370, "block_stop", None, first_epoch_num=4 * block + 1)
    yield _mllog_line(400 * steps, "run_stop", None, status="success")


def _ai_rank(steps: int) -> Iterator[str]:
    at = unix(0)
    yield f"- AI-Rank-log {at:.3f} load_data, checksum:0123456789abcdef"
    yield f"- AI-Rank-log {at + 1:.3f} test_begin"
    for epoch in range(steps):
        yield f"- AI-Rank-log {at + 100 * epoch:.3f} eval_accuracy:{0.1 + epoch / 200:.4f}, total_epoch_cnt:{epoch + 1}"
    yield f"- AI-Rank-log {at + 100 * steps:.3f} target_quality_time:{100 * steps}sec"
    yield f"- AI-Rank-log {at + 100 * steps:.3f} test_finish"
    yield f"- AI-Rank-log {at + 100 * steps:.3f} total_use_time:{100 * steps}sec"
    yield f"- AI-Rank-log {at + 100 * steps:.3f} avg_ips:855.24images/sec"


def _marked(steps: int) -> Iterator[str]:
    marks = _ai_rank(2)
    yield next(marks)
    yield from _pytorch_imagenet(steps)
    yield from marks


_DLL = r"Epoch: (?P<epoch>\d+) Iteration: (?P<step>\d+) .*?train\.total_ips : " + NUMBER
_TF = r"\((?P<epoch>\d+), (?P<step>\d+)\) .*?imgs_per_sec : " + NUMBER
_MXNET = r"Epoch\[(?P<epoch>\d+)\] Batch \[(?:\d+-)?(?P<step>\d+)\]\s+Speed: " + NUMBER
_ONEFLOW = r"epoch (?P<epoch>\d+), iter (?P<step>\d+),.*?samples/s: " + NUMBER
_PADDLE = r"\[Pass (?P<epoch>\d+), train batch (?P<step>\d+)\]"
_IMAGENET = r"Epoch: \[ *(?P<epoch>\d+)\]\s*\[ *(?P<step>\d+)/"


def _ngc_ssd(steps: int) -> Iterator[str]:
    for step in range(steps):
        yield (f"Iteration: {step:6d}, Loss function: 20.681, Average Loss: 0.445, avg. samples / sec: {RATE:.2f}")
    for epoch in (1, 2):
        yield (f"[Training][Epoch {epoch}] training time: 10.081 [sec],avg speed: {RATE:.3f} [imgs/sec],loss=14.149")


def _ngc_rnnt(steps: int) -> Iterator[str]:
    yield f"DLL {clock(0):%Y-%m-%d %H:%M:%S.%f} - PARAMETER | batch_size :  128"
    for step in range(1, steps + 1):
        yield (
            f"DLL {clock(step):%Y-%m-%d %H:%M:%S.%f} - epoch    1 | iter {step:4d}/272 | loss  341.00 | "
            f"utts/s  1119 | took {STEP_S:5.2f} s | lrate 1.00e-05"
        )
    yield f"DLL {clock(steps):%Y-%m-%d %H:%M:%S.%f} - epoch    1 | avg train utts/s  3779 | took 73.70 s"


SAMPLES_OF_ALL: Sequence[Sample] = (
    sample("ngc-pytorch", "ngc-pytorch", _ngc_pytorch, _DLL),
    sample(
        "ngc-pytorch json", "ngc-pytorch", _ngc_pytorch_json,
        r'"step": \[(?P<epoch>\d+), (?P<step>\d+)\].*?"train\.total_ips": ' + NUMBER,
    ),
    sample("ngc-pytorch tagged", "ngc-pytorch", _tagged, _DLL),
    sample("pytorch-imagenet", "pytorch-imagenet", _pytorch_imagenet, _IMAGENET),
    sample("pytorch-imagenet with marks", "pytorch-imagenet", _marked, _IMAGENET),
    sample("paddle", "paddle-resnet50", _paddle, _PADDLE),
    sample("paddle newer", "paddle-resnet50", _paddle_newer, _PADDLE + ".*? ips " + NUMBER),
    sample("plsc", "plsc", _plsc, r"Pass:(?P<epoch>\d+) batch:(?P<step>\d+) .*?qps:" + NUMBER),
    sample("plsc newer", "plsc", _plsc_newer, r"epoch: (?P<epoch>\d+), step: (?P<step>\d+),.*?throughput: " + NUMBER),
    sample("ngc-tensorflow", "ngc-tensorflow", _ngc_tensorflow, _TF),
    sample(
        "tf2-official", "tf2-official", _tf2_official,
        r"TimeHistory: .*?seconds, (?P<rate>\S+) examples/second between steps (?P<first>\d+) and (?P<step>\d+)",
    ),
    sample("ngc-mxnet", "ngc-mxnet", _ngc_mxnet, _MXNET),
    sample("gluon", "ngc-mxnet", _gluon, _MXNET),
    sample("partial fc", "ngc-mxnet", _partial_fc, r"Iter:(?P<step>\d+) Rank:.*?Total:" + NUMBER),
    sample("oneflow", "oneflow", _oneflow, _ONEFLOW),
    sample("oneflow older", "oneflow", _oneflow_older, _ONEFLOW),
    sample("ngc-ssd", "ngc-ssd", _ngc_ssd, r"Iteration: +(?P<step>\d+), .*?avg\. samples / sec: " + NUMBER),
    sample("ngc-rnnt", "ngc-rnnt", _ngc_rnnt, r"epoch +(?P<epoch>\d+) \| iter +(?P<step>\d+)/"),
    *SAMPLES,
    *(sample(*row) for row in VISION),
    sample("mllog", "mllog", _mllog, r"(?P<step>\d+)(?!)"),
    sample("ai-rank", "ai-rank", _ai_rank, r"(?P<step>\d+)(?!)"),
)  # fmt: skip
