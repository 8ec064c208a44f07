# glimpse_import_archives(FOLDER) makes targets of llama.cpp's archives in FOLDER: glimpse::ggml_base, glimpse::ggml_cpu,
# glimpse::ggml, glimpse::llama, glimpse::llama_jinja, glimpse::llama_chat. Used by the build and by the installed package.
set(glimpse_archive_names ggml-base ggml-cpu ggml llama llama-jinja llama-chat)

function(glimpse_import_archives folder)
  foreach(archive IN LISTS glimpse_archive_names)
    string(REPLACE "-" "_" name ${archive})
    add_library(glimpse::${name} STATIC IMPORTED)
    set_target_properties(glimpse::${name} PROPERTIES IMPORTED_LOCATION ${folder}/lib${archive}.a)
  endforeach()
  target_link_libraries(glimpse::ggml_base INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
  target_link_libraries(glimpse::ggml_cpu INTERFACE glimpse::ggml_base)
  if(NOT CMAKE_CXX_FLAGS MATCHES "sanitize=thread")
    target_link_libraries(glimpse::ggml_base INTERFACE gomp)  # GCC's OpenMP, which scripts/build-deps compiled for
  endif()
  target_link_libraries(glimpse::ggml INTERFACE glimpse::ggml_cpu glimpse::ggml_base)
  target_link_libraries(glimpse::llama INTERFACE glimpse::ggml)
  target_link_libraries(glimpse::llama_jinja INTERFACE glimpse::ggml)
  target_link_libraries(glimpse::llama_chat INTERFACE glimpse::llama_jinja glimpse::llama)
endfunction()

# glimpse_import_cuda(FILE) makes glimpse::cudart_static of CUDA's runtime.
function(glimpse_import_cuda file)
  add_library(glimpse::cudart_static STATIC IMPORTED)
  set_target_properties(glimpse::cudart_static PROPERTIES IMPORTED_LOCATION ${file})
  target_link_libraries(glimpse::cudart_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)
endfunction()
