// The rules of the source tree: which folder may include what, and what a header looks like. Pure functions over
// text; a problem is a sentence, no problem an empty string. Any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::structure {

struct SourceFile {
  std::string path;  ///< from the repository's root, "glimpse/kv/cache.h"
  std::string text;

  /// "kv" of glimpse/kv/...; empty outside glimpse/.
  std::string folder() const;
  bool header() const { return path.size() > 2 && path.substr(path.size() - 2) == ".h"; }
};

/// What the file includes, without quotes or brackets.
std::vector<std::string> includes_of(std::string_view text);

/// The folders that a glimpse/<folder>/CMakeLists.txt names: DEPENDS of its glimpse_module(<folder> ...), and glimpse_x
/// that its executables link.
std::set<std::string> depends_of(std::string_view cmake, std::string_view folder);

/// The folders in GLIMPSE_FOLDERS of glimpse/CMakeLists.txt, in order.
std::vector<std::string> folder_order(std::string_view cmake);

std::string include_problem(const SourceFile& file, const std::string& include, const std::set<std::string>& depends);
std::string header_problem(const SourceFile& file);
std::string length_problem(const SourceFile& file);
/// The functions that each class of the file has, by its name: overloads count, constructors, destructors and what is
/// defaulted don't.
std::map<std::string, int> functions_of_classes(std::string_view text);
/// A sentence for each class with more functions than a reader keeps in mind.
std::vector<std::string> class_problems(const SourceFile& file);
/// A sentence for each include that is a part of a circle, of files whose path begins with `folder`. A header, its
/// source and NAME_impl.h are one.
std::vector<std::string> circle_problems(const std::vector<SourceFile>& files, const std::string& folder);
/// Folders that must never see each other, whatever the CMakeLists say.
std::string edge_problem(const std::string& from, const std::string& to);

}  // namespace glimpse::structure
