# Writes a source file that holds the commit of a checkout, where it does not hold it yet:
# cmake -DFOLDER=... -DOUTPUT=commit.cc -P commit.cmake
# Run by every build: what a result says of its commit, and whether files differed from it, is that of the program.
execute_process(
  COMMAND git -C ${FOLDER} describe --always --dirty
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
set(text "// Made by cmake/commit.cmake.
#include <string_view>

namespace glimpse::cli {
extern const std::string_view kCommit;
const std::string_view kCommit = \"${commit}\";
}  // namespace glimpse::cli
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
