"""Outputs of the OSU Micro-Benchmarks, perftest and HPL, a few lines of each; the public source above it."""

# github.com/eth-cscs/cscs-docs, on OpenMPI
OSU_BW = """
# OSU MPI-CUDA Bandwidth Test v7.5
# Datatype: MPI_CHAR.
# Size      Bandwidth (MB/s)        Validation
1                       0.90              Pass
65536               22019.46              Pass
4194304             23989.54              Pass
"""

# github.com/FZJ-JSC/tutorial-multi-gpu, 03-Collectives
OSU_ALLREDUCE = """
# OSU MPI-CUDA Allreduce Latency Test v7.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
16777216             8630.58           8619.50           8642.46         10
1073741824          18630.58          18619.50          18642.46         10
"""

# github.com/eth-cscs/sarus, its user guide
OSU_LATENCY = """
# OSU MPI-CUDA Latency Test v5.7
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# Size          Latency (us)
0                       1.10
1                       5.47
65536                  20.77
"""

OSU_BIBW = """
# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.5
# Datatype: MPI_CHAR.
# Size      Bandwidth (MB/s)
1                       0.18
1048576             43759.66
"""

OSU_OTHERS = """
# OSU MPI All-to-All Personalized Exchange Latency Test v5.6.2
# Size       Avg Latency(us)
1                      32.48
2                      32.85

# OSU MPI Barrier Latency Test v5.8
# Avg Latency(us)
            12.57

# OSU MPI Allgather Latency Test v5.6.3
# Size       Avg Latency(us)
1                       1.60
262144               410.12
"""


# github.com/alogfans/RDMA101
WRITE = """\
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 4\t\tTransport type : IB
 Link type       : InfiniBand
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      5000             44326.24            44276.64                  0.708426
---------------------------------------------------------------------------------------
"""


# Azure's guide to NVIDIA's HPC benchmarks 24.03
HPL = """\
HPL-NVIDIA 24.3.0  -- NVIDIA accelerated HPL benchmark -- NVIDIA
T/V                N    NB     P     Q         Time          Gflops (   per GPU)
--------------------------------------------------------------------------------
WC0           136192  1024     2     1        50.86       3.311e+04 ( 1.656e+04)
gpu001:407892:407892 [0] NCCL INFO comm 0x5555bc5462a0 rank 0 nranks 2 cudaDev 0 - Destroy COMPLETE
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   0.000342665054 ...... PASSED
||Ax-b||_oo  . . . . . . . . . . . . . . . . . = 0.0000000005540878
"""
