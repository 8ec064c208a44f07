# Debian packages by find_package; llama.cpp from the folder that scripts/build-deps printed.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
include(${CMAKE_CURRENT_LIST_DIR}/boost.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/highway.cmake)
if(GLIMPSE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

set(GLIMPSE_DEPS "" CACHE PATH "folder printed by scripts/build-deps")
if(NOT EXISTS ${GLIMPSE_DEPS}/.complete)
  message(FATAL_ERROR "GLIMPSE_DEPS ('${GLIMPSE_DEPS}') is not a finished dependency folder; run make, or pass -DGLIMPSE_DEPS=$(scripts/build-deps release)")
endif()

# Targets of the archives in the folder; the installed package makes the same ones of its own copies.
include(${CMAKE_CURRENT_LIST_DIR}/glimpse-archives.cmake)
glimpse_import_archives(${GLIMPSE_DEPS}/lib)
foreach(name ggml_base ggml_cpu ggml llama llama_jinja)
  target_include_directories(glimpse::${name} SYSTEM INTERFACE ${GLIMPSE_DEPS}/include)
  add_library(${name} ALIAS glimpse::${name})
endforeach()
target_include_directories(glimpse::llama_jinja SYSTEM INTERFACE ${GLIMPSE_DEPS}/include/llama-common)
# nlohmann json as llama.cpp carries it (newer than the distribution's).
add_library(json INTERFACE)
target_include_directories(json SYSTEM INTERFACE ${GLIMPSE_DEPS}/include/llama-vendor)
