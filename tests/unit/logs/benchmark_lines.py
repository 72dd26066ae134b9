"""Outputs of OSU Micro-Benchmarks, perftest and HPL, shortened to a few lines; the public source above each."""

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

# github.com/ROCm/gpu-cluster-networking, on several nodes
WRITE_BOTH = """\
---------------------------------------------------------------------------------------
                 RDMA_Write Bidirectional BW Test
   Dual-port       : OFF          Device         : mlx5_0
   Number of qps   : 1            Transport type : IB
   Link type       : Ethernet
   ---------------------------------------------------------------------------------------
   local address: LID 0000 QPN 0x0901 PSN 0x5e30c8 RKey 0x2000201 VAddr 0x007fe663d20000
   ---------------------------------------------------------------------------------------
   #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
   2          5000           0.142947            0.012281            0.767588
   64         5000             4.49               4.43               8.647051
   8388608    5000             204.59             204.59             0.003049
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

# A server without --report_gbits, whose client has it, prints the client's figure below its own unit.
WRITE_OF_TWO_UNITS = """\
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8388608    5000             196.07             196.07             0.002922
"""

READ_LAT = """\
                    RDMA_Read Latency Test
 Dual-port       : OFF          Device         : mlx5_0
 Link type       : Ethernet
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n\
 2       1000          4.70           13.20        4.83                4.82             0.00            4.91                    13.20  \n\
"""  # noqa: E501

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

HPL_MXP = """\
 ****** HPL MxP Result    ******
  ||Ax-b||_oo     . . . . . . . . . . . . . . . . .          =    1.026956E-13
  ||Ax-b||_oo / (EPS * (||A||_oo * ||x||_oo + ||b||_oo) * N) =    4.477002E-04 ...... PASSED
    N = 380000, NB = 4096, NPROW = 4, NPCOL = 2, SLOPPY-TYPE = 2
       GFLOPS = 8.7877e+05, per GPU =  109846.77
    LU GFLOPS = 1.7273e+06, per GPU =  215914.71
 ****** HPL MxP Result    ******
"""

# the reference of HPL-AI, hpl-ai.c
HPL_AI = """\
                        HPL-AI Mixed-Precision Benchmark
Total time                        :        1.234 second
Effective operation per sec       :    12.345678 GFLOPs
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= 0.123000 ...PASSED
"""
