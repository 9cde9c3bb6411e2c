# NCCL for penstock_comm: where torch is built for CUDA and its header of NCCL compiles.
if(TARGET torch_cuda)
  find_path(PENSTOCK_NCCL_INCLUDE nccl.h
    HINTS ${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include
    PATH_SUFFIXES include)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES ${TORCH_LIBRARIES})
  set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_NCCL)
  if(PENSTOCK_NCCL_INCLUDE)
    set(CMAKE_REQUIRED_INCLUDES ${PENSTOCK_NCCL_INCLUDE})
  endif()
  check_cxx_source_compiles("
    #include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
    int main() { return c10d::ProcessGroupNCCL::Options::create() ? 0 : 1; }" PENSTOCK_NCCL)
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_DEFINITIONS)
  unset(CMAKE_REQUIRED_INCLUDES)
endif()
if(PENSTOCK_NCCL)
  target_compile_definitions(penstock_comm PRIVATE PENSTOCK_NCCL USE_C10D_NCCL)
  if(PENSTOCK_NCCL_INCLUDE)
    target_include_directories(penstock_comm SYSTEM PRIVATE ${PENSTOCK_NCCL_INCLUDE})
  endif()
else()
  message(STATUS "penstock: no NCCL in this torch: messages between devices go through host memory")
endif()
