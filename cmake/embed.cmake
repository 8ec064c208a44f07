# Writes a source file that holds a page of HTML with its style and script inside it:
# cmake -DFOLDER=.../picture -DPAGE=page -DNAME=kPicturePage -DOUTPUT=page.cc -P embed.cmake
# reads page.html, whose marks @head@, @base@, @css@ and @js@ stand for head.html, base.css, page.css and page.js.
# A file of its own so that a changed page is a changed dependency of the build, not of its configuration.
file(READ ${FOLDER}/${PAGE}.html page)
foreach(part head:head.html base:base.css css:${PAGE}.css js:${PAGE}.js)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 mark)
  list(GET part 1 file)
  file(READ ${FOLDER}/${file} text)
  string(REPLACE "@${mark}@" "${text}" page "${page}")
endforeach()
string(FIND "${page}" ")glimpse\"" found)
if(NOT found EQUAL -1)
  message(FATAL_ERROR "the page holds the end of the literal that is to hold it")
endif()
file(WRITE ${OUTPUT} "// Made by cmake/embed.cmake.
#include <string_view>

namespace glimpse::cli {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"glimpse(${page})glimpse\";
}  // namespace glimpse::cli
")
