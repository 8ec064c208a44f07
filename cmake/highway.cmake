# hwy::hwy, with or without Highway's own package file. Used by the build and by the installed package.
find_package(HWY CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  find_library(HWY_LIBRARY hwy REQUIRED)
  add_library(hwy::hwy INTERFACE IMPORTED)
  target_link_libraries(hwy::hwy INTERFACE ${HWY_LIBRARY})
endif()
