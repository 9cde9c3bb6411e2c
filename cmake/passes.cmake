# The fused passes of penstock/runtime/nn/passes, once for each kind of processor: a program chooses
# between them as it starts, so it runs on every processor of its architecture.

set(folder ${PROJECT_SOURCE_DIR}/penstock/runtime/nn/passes)

# Compiles a file with ATen's definitions for vectors of a capability.  Products and sums are
# rounded one by one, as torch's operators round them, where the source does not say fmadd.
function(penstock_passes file capability)
  set_source_files_properties(${folder}/${file} PROPERTIES
    COMPILE_DEFINITIONS "CPU_CAPABILITY=${capability};CPU_CAPABILITY_${capability}"
    COMPILE_OPTIONS "-O3;-ffp-contract=off;${ARGN}"
    SKIP_PRECOMPILE_HEADERS ON
    SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

penstock_passes(default.cpp DEFAULT)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  penstock_passes(avx2.cpp AVX2 -mavx2 -mfma -mf16c)
  penstock_passes(avx512.cpp AVX512 -mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma -mf16c)
  set_source_files_properties(${folder}/choice.cpp PROPERTIES HEADER_FILE_ONLY ON)
else()
  set_source_files_properties(
    ${folder}/avx2.cpp ${folder}/avx512.cpp ${folder}/choice_x86_64.cpp
    PROPERTIES HEADER_FILE_ONLY ON)
endif()
