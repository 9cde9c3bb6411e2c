# penstock_libtorch(FOLDER): the torch in FOLDER as the target penstock::libtorch.
#
# FOLDER is the package of a wheel (site-packages/torch) or an unpacked LibTorch, for CPUs or CUDA.
# Sets Torch_VERSION.
# TorchConfig.cmake is read and never run: for a torch built for CUDA it demands a CUDA toolkit,
# which takes gigabytes, and of which penstock's code uses nothing.  Installed beside
# penstock-config.cmake.

# Sets OUT to the one text between parentheses of EXPRESSION in FILE, or to "".
function(penstock_read_torch out file expression)
  set(${out} "" PARENT_SCOPE)
  if(EXISTS ${file})
    file(READ ${file} text)
    if(text MATCHES "${expression}")
      set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

function(penstock_libtorch folder)
  set(cmake ${folder}/share/cmake)
  penstock_read_torch(version ${cmake}/Torch/TorchConfigVersion.cmake
    "PACKAGE_VERSION \"([^\"]+)\"")
  penstock_read_torch(abi ${cmake}/Torch/TorchConfig.cmake "_GLIBCXX_USE_CXX11_ABI=([01])")
  penstock_read_torch(definitions ${cmake}/Caffe2/Caffe2Targets.cmake
    "set_target_properties\\(torch_cpu PROPERTIES[^)]*INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
  set(libraries)
  foreach(name IN ITEMS torch torch_cpu torch_cuda c10_cuda c10)
    if(EXISTS ${folder}/lib/lib${name}.so)
      list(APPEND libraries ${folder}/lib/lib${name}.so)
    elseif(NOT name MATCHES "cuda")
      message(FATAL_ERROR "penstock: ${folder}/lib has no lib${name}.so: not a whole torch")
    endif()
  endforeach()
  if(abi STREQUAL "0")
    message(FATAL_ERROR "penstock: torch ${version} in ${folder} has another C++ ABI "
      "(_GLIBCXX_USE_CXX11_ABI=0) than this compiler; take a build of torch with the C++11 ABI")
  endif()
  if(NOT "USE_DISTRIBUTED" IN_LIST definitions)
    message(FATAL_ERROR "penstock: torch ${version} in ${folder} is built without c10d")
  endif()
  if(NOT TARGET penstock::libtorch)
    add_library(penstock::libtorch INTERFACE IMPORTED GLOBAL)
  endif()
  # libstdc++ comes first: some builds of torch export parts of a libstdc++ of their own, of which
  # std::filesystem::remove_all of 2.11 ends a program that takes it.
  # Without --no-as-needed a linker may drop the libraries that only register their operators.
  set_target_properties(penstock::libtorch PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "${definitions}"
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
    INTERFACE_LINK_LIBRARIES "stdc++;${libraries}")
  set(Torch_VERSION ${version} PARENT_SCOPE)
endfunction()
