# Writes a source file that holds files, one behind the other, as they are:
# cmake -DFILES=a.css,b.css -DNAME=kStyle -DNAMESPACE=glimpse::server -DOUTPUT=style.cc -P embed_file.cmake
# A file of its own so that a changed page is a changed dependency of the build, not of its configuration.
string(REPLACE "," ";" FILES "${FILES}")
set(text "")
foreach(file IN LISTS FILES)
  file(READ ${file} part)
  string(APPEND text "${part}")
endforeach()
string(FIND "${text}" ")glimpse\"" found)
if(NOT found EQUAL -1)
  message(FATAL_ERROR "the file holds the end of the literal that is to hold it")
endif()
file(WRITE ${OUTPUT} "// Made by cmake/embed_file.cmake.
#include <string_view>

namespace ${NAMESPACE} {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"glimpse(${text})glimpse\";
}  // namespace ${NAMESPACE}
")
