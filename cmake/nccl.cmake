# NCCL for penstock_comm: where torch is built for CUDA and its header of NCCL compiles.
#
# The headers of CUDA and NCCL come with the packages that a wheel of torch depends on, in folders
# beside torch's own; those of CUDA 13 lack crt/, which Triton's package has.  A LibTorch has none,
# and takes those of a CUDA toolkit.
if(PENSTOCK_TORCH_CUDA)
  get_filename_component(packages ${PENSTOCK_TORCH} DIRECTORY)
  file(GLOB nvidia_headers
    ${packages}/nvidia/*/include
    ${packages}/triton/backends/nvidia/include)
  if(NOT nvidia_headers)
    find_path(PENSTOCK_CUDA_INCLUDE cuda_runtime_api.h
      HINTS $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include)
    find_path(PENSTOCK_NCCL_INCLUDE nccl.h)
    foreach(folder IN ITEMS ${PENSTOCK_CUDA_INCLUDE} ${PENSTOCK_NCCL_INCLUDE})
      if(EXISTS ${folder})
        list(APPEND nvidia_headers ${folder})
      endif()
    endforeach()
  endif()
  if(NOT PENSTOCK_NCCL)  # A success is kept, a failure is tried again: headers may have come.
    set(source ${PROJECT_BINARY_DIR}/nccl/asks.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
bool asks() { return c10d::ProcessGroupNCCL::Options::create() != nullptr; }
")
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # Compiled, not linked.
    try_compile(PENSTOCK_NCCL ${PROJECT_BINARY_DIR}/nccl SOURCES ${source}
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${nvidia_headers}"
      COMPILE_DEFINITIONS -DUSE_C10D_NCCL
      LINK_LIBRARIES penstock::libtorch
      OUTPUT_VARIABLE nccl_words
      CXX_STANDARD 20)
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  endif()
endif()
if(PENSTOCK_NCCL)
  target_compile_definitions(penstock_comm PRIVATE PENSTOCK_NCCL USE_C10D_NCCL)
  target_include_directories(penstock_comm SYSTEM PRIVATE ${nvidia_headers})
elseif(PENSTOCK_TORCH_CUDA)
  string(REGEX MATCH "error: [^\n]*" nccl_words "${nccl_words}")
  message(NOTICE "penstock: built without NCCL: messages between devices go through host memory; "
    "torch ${Torch_VERSION} is built for CUDA, and its headers of NCCL do not compile here "
    "(${nccl_words}; the headers of CUDA lie in: ${nvidia_headers}). Beside a wheel for CUDA 13, "
    "`pip install nvidia-cuda-cccl==13.0.*` brings what the wheel's own packages lack")
else()
  message(STATUS "penstock: no NCCL in this torch: messages between devices go through host memory")
endif()
