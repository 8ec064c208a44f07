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
# [PROPERTIES FIXTURES_REQUIRED models ...]); the properties go to each of its tests.
function(glimpse_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LIBRARIES;PROPERTIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_DEPENDS PREPEND glimpse_)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Wno-missing-field-initializers ${glimpse_quiet})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 900 ${arg_PROPERTIES})
endfunction()
