# GCC 12 sees an overflow inside fmt 9 that is not there.
set(glimpse_quiet $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

# One target per folder: glimpse_module(kv SOURCES ... DEPENDS base plan kernels [LIBRARIES ...])
# makes the static library glimpse_kv. The include root is the repository, so the include path is the folder path.
function(glimpse_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(glimpse_${name} STATIC ${arg_SOURCES})
  target_include_directories(glimpse_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(glimpse_${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  target_link_libraries(glimpse_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LIBRARIES})
endfunction()

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
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
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
