// Shared by the tests of saved sessions: files of a test's own, requests with a session, and parts of a file.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "glimpse/engine/session/file.h"
#include "tests/engine/support.h"
#include "tests/support/places.h"

namespace glimpse::engine {

/// A file that is not there yet, in a folder of this test's own.
inline std::filesystem::path session_path(const std::string& name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string unique = std::string(test->test_suite_name()) + "." + test->name() + "." + name;
  for (char& c : unique) c = c == '/' ? '_' : c;
  const auto folder = test::models_folder().parent_path() / "session-scratch";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / unique);
  return folder / unique;
}

inline std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

inline void write_bytes(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Of what the sequence saves.
inline std::vector<std::byte> session_bytes(const Sequence& sequence) {
  const auto path = session_path("bytes");
  sequence.save(path);
  return read_bytes(path);
}

/// The entry of a section, and where the entry lies.
struct SectionPlace {
  SessionEntry entry{};
  std::size_t at = 0;
};
inline SectionPlace find_section(const std::vector<std::byte>& file, SectionKind kind) {
  SessionHeader header{};
  std::memcpy(&header, file.data(), sizeof header);
  SectionPlace place;
  for (std::uint32_t i = 0; i < header.sections; ++i) {
    place.at = sizeof header + i * sizeof(SessionEntry);
    std::memcpy(&place.entry, file.data() + place.at, sizeof place.entry);
    if (place.entry.kind == static_cast<std::uint32_t>(kind)) return place;
  }
  throw std::runtime_error("no such section");
}

inline Result answer(Engine& engine, const std::vector<Token>& prompt, const plan::Plan& plan,
                     const std::filesystem::path& session = {}) {
  Request request;
  request.prompt = prompt;
  request.plan = plan;
  request.max_tokens = 12;
  request.ignore_end = true;
  if (!session.empty()) request.session = session;
  const RequestId id = engine.submit(request);
  while (engine.step()) {
  }
  Result result = engine.result(id);
  engine.release(id);
  return result;
}

}  // namespace glimpse::engine
