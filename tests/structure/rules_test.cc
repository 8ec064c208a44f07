// The rules themselves: they refuse what they are there to refuse.
#include "rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace glimpse::structure {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string problem(const std::string& path, const std::string& include, const std::set<std::string>& depends = {}) {
  return include_problem({path, ""}, include, depends);
}

TEST(Rules, FindsIncludes) {
  EXPECT_THAT(includes_of("#include <vector>\n  # include \"glimpse/kv/cache.h\"  // why\n// #include <no>\n"
                          "#define X\n#include HWY_TARGET_INCLUDE\n#includ\n"),
              ElementsAre("vector", "glimpse/kv/cache.h"));
}

TEST(Rules, ReadsDependsOfTheFoldersOwnModule) {
  const char* cmake =
      "glimpse_module(other DEPENDS plan)\n"
      "glimpse_module(kv  # the cache\n  SOURCES a.cc\n  DEPENDS base kernels\n  LIBRARIES fmt::fmt)\n"
      "target_link_libraries(run PRIVATE glimpse_engine CLI11::CLI11)\n";
  EXPECT_THAT(depends_of(cmake, "kv"), ElementsAre("base", "engine", "kernels"));
  EXPECT_THAT(depends_of("glimpse_module(base SOURCES a.cc)", "base"), IsEmpty());
}

TEST(Rules, ReadsTheOrderOfFolders) {
  EXPECT_THAT(folder_order("# GLIMPSE_FOLDERS no\nset(GLIMPSE_FOLDERS base plan\n  kv CACHE STRING \"x\")\n"),
              ElementsAre("base", "plan", "kv"));
}

TEST(Rules, AnEdgeNeedsItsDepends) {
  EXPECT_EQ(problem("glimpse/kv/cache.cc", "glimpse/kv/cache.h"), "");
  EXPECT_EQ(problem("glimpse/kv/cache.cc", "glimpse/base/error.h", {"base"}), "");
  EXPECT_THAT(problem("glimpse/kv/cache.cc", "glimpse/engine/engine.h", {"base"}), HasSubstr("does not name engine"));
  EXPECT_THAT(problem("glimpse/exec/ggml/graph.cc", "glimpse/text/tokenizer.h", {"base"}), HasSubstr("name text"));
  EXPECT_THAT(problem("glimpse/engine/engine.cc", "glimpse/kernels/views.h", {"kernels"}), HasSubstr("never see"));
}

TEST(Rules, ThirdPartyStaysInItsFolders) {
  EXPECT_EQ(problem("glimpse/text/tokenizer.cc", "llama.h"), "");
  EXPECT_EQ(problem("glimpse/exec/ggml/graph.cc", "ggml-alloc.h"), "");
  EXPECT_EQ(problem("glimpse/plan/plan_json.cc", "nlohmann/json.hpp"), "");
  EXPECT_EQ(problem("glimpse/base/mapped_file.cc", "sys/mman.h"), "");
  EXPECT_EQ(problem("glimpse/base/mapped_file.cc", "cstdint"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "llama.h"), "");
  EXPECT_NE(problem("glimpse/text/tokenizer.cc", "ggml.h"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "jinja/lexer.h"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "hwy/highway.h"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "spdlog/spdlog.h"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "CLI/CLI.hpp"), "");
  EXPECT_NE(problem("glimpse/engine/engine.cc", "nlohmann/json.hpp"), "");
  EXPECT_NE(problem("glimpse/engine/service.cc", "boost/asio/io_context.hpp"), "");
  EXPECT_EQ(problem("glimpse/server/json.h", "nlohmann/json_fwd.hpp"), "");
  EXPECT_THAT(problem("glimpse/server/json.h", "nlohmann/json.hpp"), HasSubstr("only .cc files"));
  EXPECT_THAT(problem("glimpse/plan/plan.h", "nlohmann/json.hpp"), HasSubstr("only .cc files"));
  EXPECT_THAT(problem("glimpse/plan/plan.cc", "absl/strings/str_cat.h"), HasSubstr("third-party"));
  EXPECT_THAT(problem("glimpse/plan/plan.cc", "plan.h"), HasSubstr("root"));
}

TEST(Rules, HeadersSayWhatTheyAreAndAreReadOnce) {
  EXPECT_EQ(header_problem({"a.h", "// A thing.\n#pragma once\n"}), "");
  EXPECT_EQ(header_problem({"a.cc", "int x;\n"}), "");
  EXPECT_EQ(header_problem({"a-inl.h", "// Per target.\n#if defined(X) == defined(HWY_TARGET_TOGGLE)\n"}), "");
  EXPECT_THAT(header_problem({"a.h", "#pragma once\n// A thing.\n"}), HasSubstr("comment"));
  EXPECT_THAT(header_problem({"a.h", "// A thing.\n#ifndef A\n"}), HasSubstr("pragma"));
}

TEST(Rules, AnIncludeLeadsNowhereBack) {
  const auto file = [](const std::string& path, const std::string& includes) {
    return SourceFile{path, "#include \"" + includes + "\"\n"};
  };
  const std::vector<SourceFile> files{
      file("glimpse/kv/a.h", "glimpse/kv/b.h"), file("glimpse/kv/b.cc", "glimpse/kv/c.h"),
      file("glimpse/kv/c.cc", "glimpse/kv/b.h"), file("glimpse/kv/d.cc", "glimpse/kv/d.h"),
      file("glimpse/kv/d_impl.h", "glimpse/kv/d.h")};
  EXPECT_THAT(circle_problems(files, "glimpse/kv/"),
              testing::ElementsAre("glimpse/kv/b includes glimpse/kv/c, which leads back to it",
                                   "glimpse/kv/c includes glimpse/kv/b, which leads back to it"));
  EXPECT_THAT(circle_problems(files, "glimpse/plan/"), testing::IsEmpty());
}

TEST(Rules, CountsTheFunctionsOfClasses) {
  constexpr std::string_view kText = R"(
// class Commented { void f(); };
class Base;
struct Plain { int a = f(1); std::function<void(int)> see; const char* text = "class No { void f(); }"; };
class [[nodiscard]] Door final : public Base, private Other<int> {
 public:
  explicit Door(int a) : a_(a) {}
  ~Door() { close(); }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  bool operator==(const Door&) const = default;
  Door& operator+=(int more);
  int open(int key) const { return helper(key); }
  int open(std::map<int, int> keys);
  template <class T>
  static T made(const T& value);
  virtual void close() noexcept = 0;
  struct Inner {
    void turn() { if (a) { b(); } }
  };
  using Call = void (*)(int);
  friend void swap(Door&, Door&);
  enum class Kind { one, two };

 private:
  alignas(64) int a_ = 0;
  std::vector<std::function<int(int)>> all_;
};
)";
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(functions_of_classes(kText), (Counts{{"Plain", 0}, {"Door", 5}, {"Inner", 1}}));
}

TEST(Rules, ClassesHaveFifteenFunctionsAtMost) {
  std::string text = "class A {\n";
  for (int i = 0; i < 15; ++i) text += "  void f" + std::to_string(i) + "();\n";
  EXPECT_THAT(class_problems({"a.h", text + "};"}), testing::IsEmpty());
  EXPECT_THAT(class_problems({"a.h", text + "  int g() const;\n};"}),
              testing::ElementsAre("a.h: A has 16 functions, more than 15"));
}

TEST(Rules, FilesEndAtSixHundredLines) {
  EXPECT_EQ(length_problem({"a.cc", std::string(600, '\n')}), "");
  EXPECT_THAT(length_problem({"a.cc", std::string(601, '\n')}), HasSubstr("601 lines"));
}

}  // namespace
}  // namespace glimpse::structure
