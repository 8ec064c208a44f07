# `cmake --install`: the program, and the library as a package that find_package(glimpse) finds. Archives and headers of
# llama.cpp stay private to it: the archives lie beside ours in lib/glimpse, and no header of ours includes theirs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(glimpse_archives ${CMAKE_INSTALL_LIBDIR}/glimpse)
set(glimpse_package ${CMAKE_INSTALL_LIBDIR}/cmake/glimpse)

# What programs build on: the engine and all below it.
set(glimpse_installed ${GLIMPSE_FOLDERS})
list(REMOVE_ITEM glimpse_installed server evaluate calibrate train cli)

if(TARGET glimpse)
  install(TARGETS glimpse RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(folder IN LISTS glimpse_installed)
  install(TARGETS glimpse_${folder} EXPORT glimpse-targets ARCHIVE DESTINATION ${glimpse_archives})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/glimpse/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glimpse
          FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE)
  target_include_directories(glimpse_${folder} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
foreach(archive IN LISTS glimpse_archive_names)
  install(FILES ${GLIMPSE_DEPS}/lib/lib${archive}.a DESTINATION ${glimpse_archives})
endforeach()
if(glimpse_has_cuda)
  install(FILES ${glimpse_cudart} DESTINATION ${glimpse_archives})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${GLIMPSE_DEPS}/share/llama.cpp/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.llama.cpp)

install(EXPORT glimpse-targets NAMESPACE glimpse:: DESTINATION ${glimpse_package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/glimpse-config.cmake.in glimpse-config.cmake
                              INSTALL_DESTINATION ${glimpse_package} PATH_VARS glimpse_archives)
write_basic_package_version_file(glimpse-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/glimpse-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/glimpse-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/glimpse-archives.cmake ${CMAKE_CURRENT_LIST_DIR}/highway.cmake
        DESTINATION ${glimpse_package})
