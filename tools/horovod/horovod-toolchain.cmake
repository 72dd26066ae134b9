# Named to CMake by the environment variable CMAKE_TOOLCHAIN_FILE. It picks no system and no compiler but MPI's: it has
# horovod-hook.cmake included where Horovod's project() ends, so that no source of Horovod is changed.
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/horovod-hook.cmake")

# The MPI that build.py has found and written into the key, not another one that CMake may find.
set(MPI_CXX_COMPILER "$ENV{RANKWISE_MPICXX}")
get_filename_component(_mpi_bin "${MPI_CXX_COMPILER}" DIRECTORY)
if(EXISTS "${_mpi_bin}/mpicc")
  set(MPI_C_COMPILER "${_mpi_bin}/mpicc")
endif()
