# The suites of a program of GoogleTest as tests of ctest: a suite is one process.
#
# A process per case would cost a start per case, and a start of a program that links torch takes
# longer than most cases.  ctest includes this file when it starts, by way of a small file for each
# program, which penstock_suites() in CMakeLists.txt writes, and which sets:
#   target        the program's target; its tests are named target.Suite, without "_tests"
#   program       the program
#   busy          the suites that keep several cores busy, as a regular expression
#   alone         the suites whose cases are a process each, as a regular expression
#   long          the cases of the long tier, as filters of GoogleTest: a process each, and with the
#                 label "long"
#   whole         the suites of which the quick tier runs a part (tests/support/sweep.h): once more
#                 in the long tier, as target.Suite.whole
#   parameters    that small file
cmake_policy(VERSION 3.25)

# Sets OUT to the cases "Suite.Case" that FILTER selects.
function(penstock_cases out filter)
  execute_process(COMMAND ${program} --gtest_list_tests --gtest_filter=${filter}
    OUTPUT_VARIABLE lines RESULT_VARIABLE failed TIMEOUT 120)
  if(failed)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${failed}")
  endif()
  string(REGEX REPLACE " *#[^\n]*" "" lines "${lines}")
  string(REPLACE "\n" ";" lines "${lines}")
  set(cases)
  foreach(line IN LISTS lines)
    if(line MATCHES "^  (.+)$")
      list(APPEND cases ${suite}${CMAKE_MATCH_1})
    elseif(line MATCHES "^([^ ]+[.])$")
      set(suite ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${out} "${cases}" PARENT_SCOPE)
endfunction()

# The test NAME of the cases that FILTER selects; ARGN are properties.
function(penstock_suite name filter suite)
  set(processors 1)
  if(busy AND suite MATCHES "${busy}")
    set(processors 2)  # Ranks wait for each other: four threads seldom keep more busy.
  endif()
  # A child that is to die starts anew: a fork would lack the threads of the cases before it.
  add_test(${name} ${program} --gtest_filter=${filter} --gtest_death_test_style=threadsafe)
  set_tests_properties(${name} PROPERTIES PROCESSORS ${processors} ${ARGN})
endfunction()

# The same, in the long tier, where sweeps are whole.
function(penstock_long_suite name filter suite)
  penstock_suite(${name} ${filter} ${suite} TIMEOUT 900 LABELS long
    ENVIRONMENT PENSTOCK_LONG_TESTS=1)
endfunction()

# Reads the list of cases, made again when the program or this file is newer, and adds the tests.
function(penstock_add_suites)
  string(REGEX REPLACE "_tests$" "" prefix ${target})
  if(NOT EXISTS ${program})
    add_test(${prefix}_NOT_BUILT ${prefix}_NOT_BUILT)
    return()
  endif()
  set(list ${parameters}.list)
  if(NOT EXISTS ${list} OR ${program} IS_NEWER_THAN ${list} OR ${parameters} IS_NEWER_THAN ${list}
     OR ${CMAKE_CURRENT_FUNCTION_LIST_FILE} IS_NEWER_THAN ${list})
    penstock_cases(cases "*")
    set(long_cases)
    if(long)
      string(REPLACE ";" ":" filter "${long}")
      penstock_cases(long_cases "${filter}")
    endif()
    file(WRITE ${list} "set(cases \"${cases}\")\nset(long_cases \"${long_cases}\")\n")
  endif()
  include(${list})
  set(suites)
  foreach(case IN LISTS cases)
    string(REGEX REPLACE "[.].*" "" suite ${case})
    if(case IN_LIST long_cases)
      penstock_long_suite(${prefix}.${case} ${case} ${suite})
      string(APPEND "except_${suite}" ":${case}")
    elseif(alone AND suite MATCHES "${alone}")
      penstock_suite(${prefix}.${case} ${case} ${suite} TIMEOUT 300)
    else()
      list(APPEND suites ${suite})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  foreach(suite IN LISTS suites)
    string(REGEX REPLACE "^:" "-" except "${except_${suite}}")
    penstock_suite(${prefix}.${suite} "${suite}.*${except}" ${suite} TIMEOUT 900)
    if(suite IN_LIST whole)
      penstock_long_suite(${prefix}.${suite}.whole "${suite}.*${except}" ${suite})
    endif()
  endforeach()
endfunction()

penstock_add_suites()
