# What every test program includes first, parsed once for all of them (glimpse_test).
add_library(test_headers OBJECT ${CMAKE_CURRENT_LIST_DIR}/../../cmake/headers.cc)
target_link_libraries(test_headers PRIVATE GTest::gmock fmt::fmt)
target_compile_options(test_headers PRIVATE ${glimpse_test_level})
target_precompile_headers(test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h>)
