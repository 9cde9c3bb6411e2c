# penstock_wing(NAME): the layers that follow are folders of penstock/NAME; a layer of that name is
# the files of penstock/NAME itself.
#
# penstock_layer(NAME [TORCH] [USES targets...] [PRIVATE_USES targets...])
#
# One folder as one static library, penstock_NAME (alias penstock::NAME), which links only what its
# row in docs/ARCHITECTURE.md names.  A word in USES without "::" is another layer.  TORCH puts the
# layer below the torch line: it links torch and shares the precompiled header.

# Designated initialisers leave fields out on purpose.  g++ 12 misjudges std::string's operator+
# under the first two of its own, and std::regex under sanitizers under the third.
set(PENSTOCK_WARNINGS
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wswitch-enum -Werror
    -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND PENSTOCK_WARNINGS -Wno-restrict -Wno-stringop-overflow -Wno-maybe-uninitialized)
  if(PENSTOCK_SANITIZE MATCHES "thread")
    # torch's headers count references with fences, of which the thread sanitizer knows nothing.
    list(APPEND PENSTOCK_WARNINGS -Wno-tsan)
  endif()
else()
  # libstdc++ 12's own std::stable_sort uses what it calls deprecated.
  list(APPEND PENSTOCK_WARNINGS -Wno-deprecated-declarations)
endif()

set(PENSTOCK_SANITIZE_FLAGS)
if(PENSTOCK_SANITIZE)
  # "vptr" opens a pipe for each look at an object, where tests have no descriptor left.
  set(PENSTOCK_SANITIZE_FLAGS
      -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined
      -fno-sanitize=vptr)
  add_link_options(${PENSTOCK_SANITIZE_FLAGS})
endif()
if(PENSTOCK_FUZZ)
  list(APPEND PENSTOCK_SANITIZE_FLAGS -fsanitize=fuzzer-no-link)
endif()

configure_file(penstock/core/version.h.in include/penstock/core/version.h @ONLY)

function(penstock_compile_options target)
  # Failed checks, torch's too, say in which source they are: no program names a folder of this
  # machine for it.
  target_compile_options(${target} PRIVATE ${PENSTOCK_WARNINGS} ${PENSTOCK_SANITIZE_FLAGS}
    -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
  if(PENSTOCK_TORCH)
    target_compile_options(${target} PRIVATE -fmacro-prefix-map=${PENSTOCK_TORCH}/=torch/)
  endif()
endfunction()

# Compiles eight of the target's files as one: most of the time goes into headers that they share.
# Off in the preset dev, where a file that does not include what it uses is found.
option(PENSTOCK_COMPILE_TOGETHER "Compile files of a layer in groups" ON)
function(penstock_compile_together target)
  if(PENSTOCK_COMPILE_TOGETHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # Of a class that its own file completes, with members that are the file's own.
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(penstock_wing name)
  set(PENSTOCK_WING ${name} PARENT_SCOPE)
endfunction()

function(penstock_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "USES;PRIVATE_USES")
  set(folder ${PROJECT_SOURCE_DIR}/penstock/${PENSTOCK_WING})
  if(name STREQUAL PENSTOCK_WING)
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  else()
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/${name}/*.cpp ${folder}/${name}/*/*.cpp)
  endif()
  set(target penstock_${name})
  set(scope PUBLIC)
  if(sources)
    add_library(${target} STATIC ${sources})
    penstock_compile_options(${target})
    penstock_compile_together(${target})
  else()
    add_library(${target} INTERFACE)  # Headers only.
    set(scope INTERFACE)
  endif()
  add_library(penstock::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  foreach(used IN LISTS arg_USES)
    if(used MATCHES "::")
      target_link_libraries(${target} ${scope} ${used})
    else()
      target_link_libraries(${target} ${scope} penstock_${used})
    endif()
  endforeach()
  foreach(used IN LISTS arg_PRIVATE_USES)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${used}>)
  endforeach()
  target_compile_features(${target} ${scope} cxx_std_20)
  if(arg_TORCH)
    penstock_below_the_torch_line(${target})
  endif()
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_INSTALLED ${target})
endfunction()

# penstock_public(NAME layers...): the interface target penstock::NAME over those layers.
function(penstock_public name)
  add_library(penstock_${name} INTERFACE)
  add_library(penstock::${name} ALIAS penstock_${name})
  set_target_properties(penstock_${name} PROPERTIES EXPORT_NAME ${name})
  foreach(layer IN LISTS ARGN)
    target_link_libraries(penstock_${name} INTERFACE penstock_${layer})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_INSTALLED penstock_${name})
endfunction()
