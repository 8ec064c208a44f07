get_filename_component(glimpse_root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

# GCC 12 sees an overflow inside fmt 9 that is not there.
set(glimpse_quiet $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

# Modules may become part of a shared library. Functions are still inlined as in a program.
set(glimpse_pic -fno-semantic-interposition)

set(glimpse_warnings -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
# For what a run spends no time in, as tests and benchmarks do not: theirs goes by in the libraries. A third of a build.
set(glimpse_cold $<$<CONFIG:Release>:-O1>)
# Builds with sanitizers do not optimise tests: there most of their compile time goes into optimising the checks.
set(glimpse_test_level "${glimpse_cold}$<$<CONFIG:None>:-O0>")

# What most files include, parsed once for all of them: half of a build's time went there. `make lint` reads every file
# without, so that none forgets an include of its own. One for each level: GCC 12 crashes where they are mixed.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # so that ccache knows what they hold
foreach(kind "" _cold)
  add_library(module_headers${kind} OBJECT ${CMAKE_CURRENT_LIST_DIR}/headers.cc)
  target_compile_options(module_headers${kind} PRIVATE ${glimpse_warnings} ${glimpse_pic})
  set_target_properties(module_headers${kind} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(module_headers${kind} PRIVATE fmt::fmt)
  target_precompile_headers(module_headers${kind} PRIVATE
    <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <optional> <span>
    <string> <string_view> <vector> <fmt/format.h>)
endforeach()
target_compile_options(module_headers_cold PRIVATE ${glimpse_cold})

# A build from nothing may compile the files of a target together (CMAKE_UNITY_BUILD), as scripts/build does where CI is
# true: what their templates and headers need is then compiled once. Two files of a target that give one name to things
# of their own cannot go together, or worse, one calls the other's: one of them is listed as ALONE, or the whole target
# is APART.
function(glimpse_compile_together target apart alone)
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(apart)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()

# glimpse_module(kv SOURCES ... DEPENDS base plan kernels [LIBRARIES ...] [ALONE ...] [APART] [COLD]) makes the static
# library glimpse_kv, one for each folder. The include root is the repository, so the include path is the folder path.
function(glimpse_module name)
  cmake_parse_arguments(arg "COLD;APART" "" "SOURCES;DEPENDS;LIBRARIES;ALONE" ${ARGN})
  add_library(glimpse_${name} STATIC ${arg_SOURCES})
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT arg_COLD)  # what users measure is compiled as theirs is
    set(arg_APART ON)
  endif()
  glimpse_compile_together(glimpse_${name} "${arg_APART}" "${arg_ALONE}")
  set_target_properties(glimpse_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_include_directories(glimpse_${name} PUBLIC $<BUILD_INTERFACE:${glimpse_root}>)
  target_compile_features(glimpse_${name} PUBLIC cxx_std_20)
  target_compile_options(glimpse_${name} PRIVATE ${glimpse_warnings} ${glimpse_pic})
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  list(TRANSFORM arg_LIBRARIES REPLACE "^(json|boost)$" "$<BUILD_INTERFACE:\\1>")  # headers alone: nothing to link later
  target_link_libraries(glimpse_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LIBRARIES})
  if(arg_COLD)
    target_compile_options(glimpse_${name} PRIVATE ${glimpse_cold})
    target_precompile_headers(glimpse_${name} REUSE_FROM module_headers_cold)
  else()
    target_precompile_headers(glimpse_${name} REUSE_FROM module_headers)
  endif()
endfunction()

# Threads that an engine of tests/support keeps busy. ctest must not run more of them than there are cores: a thread
# without one holds up its team at every barrier, and under ThreadSanitizer ggml's own barriers spin.
set(glimpse_test_threads 1)
if(CMAKE_CXX_FLAGS MATCHES "sanitize=thread")
  set(glimpse_test_threads 2)
endif()

# A GoogleTest program, tests/<folder>/<name>: glimpse_test(kv_test SOURCES ... DEPENDS kv [LIBRARIES ...] [ALONE ...]
# [APART] [THREADS 2] [BUSY "Threads.*"] [TOGETHER Sets/TidalSets ...] [PROPERTIES FIXTURES_REQUIRED models ...]); the
# properties go to each of its tests. THREADS are what a test keeps busy, 2 for those that the filter BUSY names. Each
# suite of TOGETHER is one test of ctest, so that its tests share what the first of them makes; none of them may skip,
# which ctest would not show. Tests with the label gpu are left out where a sanitizer is, for those builds have no CUDA.
function(glimpse_test name)
  cmake_parse_arguments(arg "APART" "THREADS;BUSY" "SOURCES;DEPENDS;LIBRARIES;ALONE;PROPERTIES;TOGETHER" ${ARGN})
  if("gpu" IN_LIST arg_PROPERTIES AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    return()
  endif()
  if(NOT arg_THREADS)
    set(arg_THREADS 1)
  endif()
  add_executable(${name} ${arg_SOURCES})
  glimpse_compile_together(${name} "${arg_APART}" "${arg_ALONE}")
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} ${arg_LIBRARIES} test_places GTest::gmock GTest::gtest_main fmt::fmt)
  target_compile_options(${name} PRIVATE ${glimpse_test_level})
  # Undefined behaviour is looked for in what is tested: in the tests themselves that is two fifths of their compile time.
  if(CMAKE_CXX_FLAGS MATCHES "sanitize=address,undefined")
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  target_precompile_headers(${name} REUSE_FROM test_headers)
  list(TRANSFORM arg_TOGETHER APPEND ".*" OUTPUT_VARIABLE apart)
  list(APPEND apart ${arg_BUSY})
  list(JOIN apart ":" apart)
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 TEST_FILTER "-${apart}"
                       PROPERTIES TIMEOUT 900 PROCESSORS ${arg_THREADS} ${arg_PROPERTIES})
  if(arg_BUSY)
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 TEST_FILTER "${arg_BUSY}"
                         PROPERTIES TIMEOUT 900 PROCESSORS 2 ${arg_PROPERTIES})
  endif()
  foreach(suite IN LISTS arg_TOGETHER)
    add_test(NAME ${suite} COMMAND ${name} "--gtest_filter=${suite}.*")
    set_tests_properties(${suite} PROPERTIES TIMEOUT 1800 PROCESSORS ${arg_THREADS} ${arg_PROPERTIES}
                         FAIL_REGULAR_EXPRESSION "Running 0 tests")
  endforeach()
endfunction()
