"""Outputs of nccl-tests, of public ones shortened to a few sizes; the source stands above each."""

from __future__ import annotations

COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


OLD_COLUMNS = """\
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def ranks(host: str, first: int = 0, count: int = 8) -> str:
    return "".join(
        f"#  Rank {first + device:2} Group  0 Pid {295203 + device} on    {host} device  {device} [0x18] "
        "NVIDIA H100 80GB HBM3\n"
        for device in range(count)
    )


# github.com/NVIDIA/nccl-tests/issues/290, on one node
ONE_NODE = (
    "# nThread 1 nGpus 8 minBytes 134217728 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 2 agg iters: 1 "
    "validation: 1 graph: 0\n#\n# Using devices\n"
    + ranks("node005")
    + COLUMNS
    + """\
   134217728      33554432     float     sum      -1    613.3  218.85  382.99      0    614.3  218.48  382.34      0
   268435456      67108864     float     sum      -1   1139.2  235.63  412.35      0   1134.8  236.56  413.97      0
   536870912     134217728     float     sum      -1   2175.8  246.75  431.81      0   2181.4  246.11  430.69      0
  1073741824     268435456     float     sum      -1   4038.8  265.85  465.25      0   4043.6  265.54  464.70      0
  2147483648     536870912     float     sum      -1   8020.3  267.76  468.57      0   8002.1  268.36  469.64      0
  4294967296    1073741824     float     sum      -1    15870  270.63  473.60      0    15773  272.30  476.53      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 439.369
#
"""
)


# The same issue, on two nodes under srun --label, results not checked
TWO_NODES = "".join(
    f" 0: {line}\n"
    for line in (
        "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 200 "
        "agg iters: 1 validation: 0 graph: 0\n#\n# Using devices\n"
        + ranks("node005")
        + ranks("node007", first=8)
        + COLUMNS
        + """\
     8388608       2097152     float     sum      -1    215.3   38.96   73.04    N/A    180.0   46.60   87.38    N/A
   134217728      33554432     float     sum      -1   1575.6   85.19  159.72    N/A   1566.6   85.68  160.64    N/A
  8589934592    2147483648     float     sum      -1   103530   82.97  155.57    N/A   103538   82.96  155.56    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 142.735
"""
    ).splitlines()
)


# github.com/aws-ia/terraform-aws-eks-blueprints, the example with EFA: mpirun -tag-output, NCCL_DEBUG=INFO
TAGGED = """\
Warning: Permanently added 'test-nccl-efa-worker-1.test-nccl-efa-worker.default.svc,10.11.5.31' (ECDSA) to the list of known hosts.
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 100 agg iters: 1 validation: 1 graph: 0
[1,0]<stdout>:#
[1,0]<stdout>:# Using devices
[1,0]<stdout>:#  Rank  0 Group  0 Pid     21 on test-nccl-efa-worker-0 device  0 [0x35] Tesla T4
[1,0]<stdout>:#  Rank  1 Group  0 Pid     21 on test-nccl-efa-worker-1 device  0 [0xf5] Tesla T4
[1,0]<stdout>:test-nccl-efa-worker-0:21:21 [0] NCCL INFO Using network AWS Libfabric
[1,0]<stdout>:NCCL version 2.12.7+cuda11.4
[1,1]<stdout>:test-nccl-efa-worker-1:21:21 [0] NCCL INFO Bootstrap : Using eth0:10.11.5.31<0>
[1,0]<stdout>:#
[1,0]<stdout>:#                                                              out-of-place                       in-place
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:           0             0     float     sum      -1     6.36    0.00    0.00      0     6.40    0.00    0.00      0
[1,0]<stdout>:           0             0     float     sum      -1     6.43    0.00    0.00      0     6.35    0.00    0.00      0
[1,1]<stdout>:test-nccl-efa-worker-1:21:21 [0] NCCL INFO comm 0x7f9c0c000f60 rank 1 nranks 2 cudaDev 0 busId f5000 - Destroy COMPLETE
[1,0]<stdout>:  1073741824     268435456     float     sum      -1   344981    3.11    3.11      0   344454    3.12    3.12      0
[1,0]<stdout>:# Out of bounds values : 0 OK
[1,0]<stdout>:# Avg bus bandwidth    : 1.15327
"""  # noqa: E501


# Head: github.com/NVIDIA/nccl/issues/398 (2020, no Group); rows: github.com/NVIDIA/nccl/issues/439 (no root, `error`);
# its end by the format strings of src/common.cu, 2.10
OLD = f"""\
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 50 validation: 1\x20
#
# Using devices
#   Rank  0 Pid   7846 on ip-172-31-0-112 device  0 [0x00] Tesla V100-SXM2-32GB
#   Rank  1 Pid   7998 on ip-172-31-13-129 device  0 [0x00] Tesla V100-SXM2-32GB
ip-172-31-0-112:7846:7846 [0] ofi_init:700 NCCL WARN NET/OFI Only EFA provider is supported
NCCL version 2.4.8+cuda10.1
{OLD_COLUMNS}\
           8             2   float     sum     9.75    0.00    0.00  0e+00     9.73    0.00    0.00  0e+00
         512           128   float     sum    10.05    0.05    0.05  0e+00     9.87    0.05    0.05  2e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.414483\x20
#
"""


# github.com/NVIDIA/dgx-spark-playbooks/issues/25 (2.17.6; its end by the format strings of src/util.cu)
# and pull 103 (2.20.0; cut off)
NEW = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 17179869184 maxBytes 17179869184 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 1935208 on      spark device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid 1278829 on spark-3995 device  0 [000f:01:00] NVIDIA GB10
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
 17179869184    2147483648     float    none      -1   453650   37.87   18.94       0   410049   41.90   20.95       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.9441
#
# Collective test concluded: all_gather_perf
#
# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23102 nccl-library=23102
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8192 maxBytes 8589934592 step: 2(factor) warmup iters: 10 iters: 100 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid 1666603 on spark-d708 device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid 1669515 on spark-dbf4 device  0 [000f:01:00] NVIDIA GB10
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        8192          2048     float     sum      -1    35.15    0.23    0.23       0    30.33    0.27    0.27       0
       65536         16384     float     sum      -1    67.93    0.96    0.96       0    64.71    1.01    1.01       0
"""  # noqa: E501


# rccl-tests on an AMD GPU: the sample in the comments of a public parser of it
OF_RCCL = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 268435456 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
rccl-tests: Version develop:33cc4df
# Using devices
#  Rank  0 Group  0 Pid  78515 on amd-mi355x-ses2-1 device  0 [0000:05:00] AMD Instinct MI355X
RCCL version : 2.26.6-heads/drop/2025-08:c3b8de4
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum      -1   1464.9  183.24  343.57      0   1442.5  186.10  348.93      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 346.251
#
"""  # noqa: E501


# github.com/NVIDIA/nccl-tests/issues/107: built without MPI, two processes that know nothing of each other
WITHOUT_MPI = f"""\
# nThread 1 nGpus 1 minBytes 1310720000 maxBytes 1310720000 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
# nThread 1 nGpus 1 minBytes 1310720000 maxBytes 1310720000 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  0 Pid   2066 on ip-172-31-22-230 device  0 [0x00] Tesla V100-SXM2-16GB
{OLD_COLUMNS}"""
