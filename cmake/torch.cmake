# Finds torch through Torch_DIR, or through the Python that PENSTOCK_PYTHON names (default: the
# project's own .venv if there is one, else python3), and prepares what torch-side targets share.

# Compiled against; docs/install.md says which of them ran the tests.
set(PENSTOCK_TORCH_VERSIONS_BUILT 2.11 2.12 2.13 2.14)
set(PENSTOCK_TORCH_LEAST 2.11)

if(Torch_DIR)
  if(NOT EXISTS ${Torch_DIR}/TorchConfig.cmake)
    message(FATAL_ERROR "penstock: Torch_DIR=${Torch_DIR} holds no TorchConfig.cmake")
  endif()
  get_filename_component(PENSTOCK_TORCH ${Torch_DIR}/../../.. ABSOLUTE)
else()
  if(SKBUILD)
    set(PENSTOCK_PYTHON ${Python3_EXECUTABLE})  # The one that runs pip.
  elseif(NOT PENSTOCK_PYTHON)
    find_program(PENSTOCK_PYTHON NAMES python3
      HINTS ${PROJECT_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
    find_program(PENSTOCK_PYTHON NAMES python3)
  endif()
  execute_process(
    COMMAND ${PENSTOCK_PYTHON} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE PENSTOCK_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE torch_missing ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR
      "penstock: ${PENSTOCK_PYTHON} has no torch.  Run ./setup.sh, or set PENSTOCK_PYTHON to a "
      "Python that has torch, or Torch_DIR to a LibTorch; -DPENSTOCK_RUNTIME=OFF builds without "
      "torch.")
  endif()
endif()
include(cmake/libtorch.cmake)
penstock_libtorch(${PENSTOCK_TORCH})
message(STATUS "penstock: torch ${Torch_VERSION} in ${PENSTOCK_TORCH}")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${Torch_VERSION}")
if(torch_minor VERSION_LESS PENSTOCK_TORCH_LEAST)
  message(FATAL_ERROR "penstock: torch ${Torch_VERSION} is too old: ${PENSTOCK_TORCH_LEAST} or "
    "newer is needed")
endif()
if(NOT torch_minor IN_LIST PENSTOCK_TORCH_VERSIONS_BUILT)
  message(WARNING
    "penstock: compiled against torch ${PENSTOCK_TORCH_VERSIONS_BUILT} so far, found torch "
    "${Torch_VERSION}: it may work, nobody has tried")
endif()
if(EXISTS /usr/include/gloo/context.h)
  message(STATUS "penstock: the system's gloo headers describe another gloo and are not used")
endif()

# Everything torch-side compiles with NDEBUG: the release wheel's inline code asserts otherwise.
# -isystem keeps torch's own warnings out of ours.
add_library(penstock_torch INTERFACE)
target_link_libraries(penstock_torch INTERFACE penstock::libtorch)
target_compile_definitions(penstock_torch INTERFACE NDEBUG)
set_target_properties(penstock_torch PROPERTIES EXPORT_NAME torch)
set_property(GLOBAL APPEND PROPERTY PENSTOCK_INSTALLED penstock_torch)

# One precompiled header for all torch-side targets; reused, so built once.
set(pch_owner ${PROJECT_BINARY_DIR}/pch/torch_pch.cpp)
file(CONFIGURE OUTPUT ${pch_owner} CONTENT "// Owner of the torch-side precompiled header.\n")
add_library(penstock_torch_pch OBJECT ${pch_owner})
target_link_libraries(penstock_torch_pch PUBLIC penstock_torch)
penstock_compile_options(penstock_torch_pch)
target_compile_options(penstock_torch_pch PRIVATE -fpch-preprocess)
target_precompile_headers(penstock_torch_pch PRIVATE
  ${PROJECT_SOURCE_DIR}/cmake/torch_pch.h)

function(penstock_below_the_torch_line target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL INTERFACE_LIBRARY)
    target_link_libraries(${target} INTERFACE penstock_torch)
    return()
  endif()
  if(type STREQUAL EXECUTABLE)
    # CMake would say -fPIE, and a precompiled header serves one of the two only.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_link_libraries(${target} PUBLIC penstock_torch)
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  target_precompile_headers(${target} REUSE_FROM penstock_torch_pch)
endfunction()
