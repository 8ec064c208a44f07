# GCC 12 sees an overflow inside fmt 9 that is not there.
set(glimpse_quiet $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

set(glimpse_warnings -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
# Where the time of a run goes, and where that of a build should not.
set(glimpse_hot $<$<CONFIG:Release>:-O3>)

# What most files include, parsed once for all of them: half of a build's time went there. `make lint` reads every file
# without, so that none forgets an include of its own.
foreach(kind "" _hot)
  add_library(module_headers${kind} OBJECT ${CMAKE_CURRENT_LIST_DIR}/headers.cc)
  target_compile_options(module_headers${kind} PRIVATE ${glimpse_warnings})
  target_link_libraries(module_headers${kind} PRIVATE fmt::fmt)
  target_precompile_headers(module_headers${kind} PRIVATE
    <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <optional> <span>
    <string> <string_view> <vector> <fmt/format.h>)
endforeach()
target_compile_options(module_headers_hot PRIVATE ${glimpse_hot})

# One target per folder: glimpse_module(kv SOURCES ... DEPENDS base plan kernels [LIBRARIES ...] [HOT])
# makes the static library glimpse_kv. The include root is the repository, so the include path is the folder path.
# HOT: optimised for its own loops.
function(glimpse_module name)
  cmake_parse_arguments(arg "HOT" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(glimpse_${name} STATIC ${arg_SOURCES})
  target_include_directories(glimpse_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(glimpse_${name} PRIVATE ${glimpse_warnings})
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  target_link_libraries(glimpse_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LIBRARIES})
  if(arg_HOT)
    target_compile_options(glimpse_${name} PRIVATE ${glimpse_hot})
    target_precompile_headers(glimpse_${name} REUSE_FROM module_headers_hot)
  else()
    target_precompile_headers(glimpse_${name} REUSE_FROM module_headers)
  endif()
endfunction()

# Tests and benchmarks spend their time in the libraries, and a build in theirs: half of it with this and with their
# headers parsed once.
set(glimpse_cold $<$<CONFIG:Release>:-O1>)

# A GoogleTest program, tests/<folder>/<name>: glimpse_test(kv_test SOURCES ... DEPENDS kv [LIBRARIES ...]
# [PROPERTIES FIXTURES_REQUIRED models ...] [THREADS 2] [SINGLE "Sets/*"]); the properties go to each of its tests. THREADS
# are what a test keeps busy: ggml's barriers spin, so ctest must not run more of them than there are cores. Those that
# the filter SINGLE names use one all the same.
function(glimpse_test name)
  cmake_parse_arguments(arg "" "THREADS;SINGLE" "SOURCES;DEPENDS;LIBRARIES;PROPERTIES" ${ARGN})
  if(NOT arg_THREADS)
    set(arg_THREADS 1)
  endif()
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} ${arg_LIBRARIES} GTest::gmock GTest::gtest_main fmt::fmt)
  target_compile_options(${name} PRIVATE ${glimpse_cold})
  target_precompile_headers(${name} REUSE_FROM test_headers)
  if(arg_SINGLE)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "${arg_SINGLE}"
                         PROPERTIES TIMEOUT 900 ${arg_PROPERTIES})
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_FILTER "-${arg_SINGLE}"
                         PROPERTIES TIMEOUT 900 PROCESSORS ${arg_THREADS} ${arg_PROPERTIES})
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT 900 PROCESSORS ${arg_THREADS} ${arg_PROPERTIES})
  endif()
endfunction()
