// The rules held against this repository's files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "rules.h"
#include "tests/support/places.h"

namespace glimpse::structure {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// Sources by their endings; test data and what a build may have left are neither.
bool is_source(const fs::path& path) {
  static const std::set<std::string> endings{".h",  ".cc", ".c",     ".cpp",  ".cu",  ".cuh",
                                             ".py", ".sh", ".cmake", ".html", ".css", ".js"};
  return endings.count(path.extension().string()) != 0 || path.filename() == "CMakeLists.txt" ||
         (path.parent_path().filename() == "scripts" && !path.has_extension());
}

std::vector<SourceFile> sources(const std::vector<std::string>& roots) {
  std::vector<SourceFile> files;
  const fs::path root = test::source_root();
  for (const std::string& folder : roots) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      files.push_back({fs::relative(entry.path(), root).generic_string(), read(entry.path())});
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

std::vector<SourceFile> code(const std::vector<std::string>& roots) {
  std::vector<SourceFile> files = sources(roots);
  const auto other = [](const SourceFile& file) {
    const std::string ending = fs::path(file.path).extension().string();
    return ending != ".h" && ending != ".cc" && ending != ".cu" && ending != ".cuh";
  };
  files.erase(std::remove_if(files.begin(), files.end(), other), files.end());
  return files;
}

std::string cmake_of(const std::string& folder) {
  return read(test::source_root() / "glimpse" / folder / "CMakeLists.txt");
}

TEST(Tree, IncludesFollowTheFoldersDepends) {
  const auto files = code({"glimpse"});
  ASSERT_GT(files.size(), 10u) << "no sources under " << test::source_root();
  std::map<std::string, std::set<std::string>> depends;
  for (const SourceFile& file : files) {
    const std::string folder = file.folder();
    ASSERT_NE(folder, "") << file.path << " lies in no folder";
    if (depends.count(folder) == 0) depends[folder] = depends_of(cmake_of(folder), folder);
    for (const std::string& include : includes_of(file.text)) {
      EXPECT_EQ(include_problem(file, include, depends[folder]), "");
    }
  }
}

TEST(Tree, DependsPointBackInTheOrderOfFolders) {
  const auto order = folder_order(cmake_of(""));
  ASSERT_FALSE(order.empty());
  std::set<std::string> before;
  for (const std::string& folder : order) {
    for (const std::string& other : depends_of(cmake_of(folder), folder)) {
      if (other == folder) continue;  // a program that links its own folder
      EXPECT_TRUE(before.count(other) != 0) << folder << " depends on " << other << ", which does not come before it";
      EXPECT_EQ(edge_problem(folder, other), "");
    }
    before.insert(folder);
  }
}

TEST(Tree, RoomsLeadNowhereBack) {
  const auto files = code({"glimpse"});
  for (const char* folder : {"glimpse/attention/", "glimpse/engine/", "glimpse/exec/"}) {
    EXPECT_THAT(circle_problems(files, folder), testing::IsEmpty());
  }
}

TEST(Tree, HeadersStartRight) {
  for (const SourceFile& file : code({"glimpse", "tests", "bench"})) EXPECT_EQ(header_problem(file), "");
}

TEST(Tree, NoClassOfAttentionHasTooManyFunctions) {
  int classes = 0;
  for (const SourceFile& file : code({"glimpse/attention"})) {
    EXPECT_THAT(class_problems(file), testing::IsEmpty());
    classes += static_cast<int>(functions_of_classes(file.text).size());
  }
  EXPECT_GT(classes, 100) << "they are found";
}

TEST(Tree, NoFileIsTooLong) {
  for (const SourceFile& file : sources({"glimpse", "tests", "bench", "examples", "scripts", "cmake"})) {
    EXPECT_EQ(length_problem(file), "");
  }
}

}  // namespace
}  // namespace glimpse::structure
