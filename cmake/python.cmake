# The Python package: bindings/ as extension modules in build/python/penstock, beside links to the
# files of python/penstock, so that PYTHONPATH=build/python imports what is being worked on.
#
# pybind11 is torch's own, so that a module that hands over tensors and one that does not share
# types; its headers are all that is taken from torch here, and nothing of torch is loaded.

# The Python whose package it becomes.  PENSTOCK_PYTHON stays as it is: it says where torch is.
if(SKBUILD)
  set(package_python ${Python3_EXECUTABLE})  # The one that runs pip.
elseif(PENSTOCK_PYTHON)
  set(package_python ${PENSTOCK_PYTHON})
else()
  find_program(package_python NAMES python3
    HINTS ${PROJECT_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH NO_CACHE)
  find_program(package_python NAMES python3 NO_CACHE)
endif()

# Sets pybind11_headers, or python_missing to what there is not.
set(python_missing "")
if(SKBUILD AND PENSTOCK_TORCH)
  set(torch_folder ${PENSTOCK_TORCH})  # Found for pip, which hides it from its own Python.
else()
  execute_process(
    COMMAND ${package_python} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(pybind11_headers ${torch_folder}/include)
set(Python3_EXECUTABLE ${package_python})
find_package(Python3 3.10 QUIET COMPONENTS Interpreter Development.Module)
if(PENSTOCK_SANITIZE MATCHES "thread")
  set(python_missing "a Python with the thread sanitizer")  # torch's threads would be all it sees.
elseif(NOT EXISTS ${pybind11_headers}/pybind11/pybind11.h)
  set(python_missing "torch with pybind11's headers in ${package_python} (./setup.sh gets it)")
elseif(NOT Python3_FOUND)
  set(python_missing "Python.h of ${package_python}, 3.10 or newer (Debian: python3-dev)")
endif()
if(python_missing)
  if(NOT PENSTOCK_BINDINGS STREQUAL "AUTO")
    message(FATAL_ERROR "penstock: the Python package cannot be built without ${python_missing}")
  endif()
  message(STATUS "penstock: the Python package is not built, for want of ${python_missing}")
  return()
endif()

set(python_folder ${PROJECT_BINARY_DIR}/python/penstock)
add_custom_target(penstock_python ALL)

# penstock_extension(NAME LINKS targets...): bindings/NAME/*.cpp as the module penstock._NAME.
function(penstock_extension name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINKS")
  set(target penstock_python_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bindings/${name}/*.cpp)
  Python3_add_library(${target} MODULE WITH_SOABI ${sources})
  penstock_compile_options(${target})
  penstock_compile_together(${target})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _${name} LIBRARY_OUTPUT_DIRECTORY ${python_folder}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${pybind11_headers})
  target_link_libraries(${target} PRIVATE ${arg_LINKS})
  install(TARGETS ${target} DESTINATION penstock COMPONENT python EXCLUDE_FROM_ALL)
  add_dependencies(penstock_python ${target})
endfunction()

penstock_extension(planning LINKS penstock::plan)
if(PENSTOCK_RUNTIME)
  # Of torch's Python half, which has the casters of tensors and stores.
  find_library(torch_python torch_python PATHS ${torch_folder}/lib REQUIRED NO_DEFAULT_PATH)
  penstock_extension(runtime LINKS penstock::runtime ${torch_python})
endif()
# "" where there is no such module.
target_compile_definitions(penstock_python_planning PRIVATE
  PENSTOCK_TORCH_VERSION="${Torch_VERSION}")

file(GLOB_RECURSE python_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python/penstock
  ${PROJECT_SOURCE_DIR}/python/penstock/*.py ${PROJECT_SOURCE_DIR}/python/penstock/*.pyi
  ${PROJECT_SOURCE_DIR}/python/penstock/*.ini ${PROJECT_SOURCE_DIR}/python/penstock/py.typed)
foreach(file IN LISTS python_files)
  get_filename_component(folder ${python_folder}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/penstock/${file} ${python_folder}/${file} SYMBOLIC)
endforeach()
# For `python -m penstock`.
file(MAKE_DIRECTORY ${python_folder}/bin)
file(CREATE_LINK ${PROJECT_BINARY_DIR}/bin/penstock ${python_folder}/bin/penstock SYMBOLIC)
