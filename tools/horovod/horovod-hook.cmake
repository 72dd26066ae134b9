# Runs inside the build of Horovod 0.28.1 (horovod-toolchain.cmake has it included), and once more when Horovod's own
# CMakeLists.txt has been read to its end.

# Without -g: smaller libraries, built sooner. Horovod turns this -O2 into -O3.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")

function(rankwise_adjust_targets)
  # The headers of torch >= 2.1 want C++17, those of 2.13 C++20; Horovod says 14. gloo has to follow: a libgloo.a of
  # C++14 defines Store::kDefaultTimeout, which is inline from 17 on, and the link would see it twice.
  foreach(target pytorch gloo compatible_gloo)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES CXX_STANDARD 20)
    endif()
  endforeach()

  # All of xla_mpi_ops.cc is for GPUs (#if HAVE_GPU), but it includes headers that TensorFlow 2.19 has moved.
  if(TARGET tensorflow AND NOT HAVE_CUDA AND NOT HAVE_ROCM)
    get_target_property(sources tensorflow SOURCES)
    list(FILTER sources EXCLUDE REGEX "xla_mpi_ops\\.cc$")
    set_target_properties(tensorflow PROPERTIES SOURCES "${sources}")
  endif()

  # The wheel may be installed into other environments: frameworks are looked for beside it, not where it was built.
  set(directories "")
  foreach(library ${MPI_CXX_LIBRARIES} ${NCCL_LIBRARIES})
    get_filename_component(directory "${library}" DIRECTORY)
    list(APPEND directories "${directory}")
  endforeach()
  list(REMOVE_DUPLICATES directories)
  foreach(target_and_package "pytorch:torch/lib" "tensorflow:tensorflow")
    string(REPLACE ":" ";" pair "${target_and_package}")
    list(GET pair 0 target)
    list(GET pair 1 package)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
        INSTALL_RPATH "\$ORIGIN/../../${package};${directories}")
    endif()
  endforeach()

  # horovod/metadata.json, which tells what Horovod was built against, tells all that build.py's key is made of.
  set(metadata "${CMAKE_LIBRARY_OUTPUT_DIRECTORY_ROOT}/metadata.json")
  file(READ "${metadata}" text)
  string(JSON text SET "${text}" built_for "$ENV{RANKWISE_BUILT_FOR}")
  file(WRITE "${metadata}" "${text}\n")
  message(STATUS "rankwise: targets adjusted, ${metadata} completed")
endfunction()
cmake_language(DEFER CALL rankwise_adjust_targets)
