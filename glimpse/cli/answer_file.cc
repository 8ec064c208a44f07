#include "glimpse/cli/answer_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kName = "glimpse_answers";
constexpr int kVersion = 1;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string plan_text(std::uint64_t plan) {
  return fmt::format("{:016x}", plan);
}

Json json_of(const evaluate::AnswerKey& key, const evaluate::Answer& answer, const std::string& plan) {
  return {{"task", key.task},
          {"length", key.length},
          {"depth", key.depth ? Json(*key.depth) : Json()},
          {"number", key.number},
          {"arm", key.arm},
          {"plan", plan},
          {"score", answer.score},
          {"dense", answer.dense},
          {"agreement", answer.agreement},
          {"divergence", answer.divergence},
          {"bytes_read", answer.bytes_read},
          {"dense_bytes", answer.dense_bytes},
          {"steps", answer.steps},
          {"step_s", answer.step_s ? Json(*answer.step_s) : Json()},
          {"cache_bytes", answer.cache_bytes},
          {"text", answer.text}};
}

std::pair<evaluate::AnswerKey, evaluate::Answer> answer_of(const Json& json) {
  evaluate::AnswerKey key{json.at("task"), json.at("length"), std::nullopt, json.at("number"), json.at("arm")};
  if (!json.at("depth").is_null()) key.depth = json["depth"].get<int>();
  evaluate::Answer answer{json.at("score"),       json.at("dense"),       json.at("agreement"), json.at("divergence"),
                          json.at("bytes_read"),  json.at("dense_bytes"), json.at("steps"),     std::nullopt,
                          json.at("cache_bytes"), json.at("text")};
  if (!json.at("step_s").is_null()) answer.step_s = json["step_s"].get<double>();
  return {std::move(key), std::move(answer)};
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return ::fdatasync(file) == 0;
}

}  // namespace

AnswerFile::AnswerFile(std::filesystem::path path, const Facts& facts) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat what {};
  if (file_ < 0 || ::fstat(file_, &what) != 0) refuse(std::strerror(errno));
  try {
    if (!S_ISREG(what.st_mode)) refuse("it is no file");
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) refuse("another process writes it; wait for that, or give another -o");
    if (what.st_size > kMostBytes) refuse(fmt::format("it has more than {} bytes; give another -o", kMostBytes));
    std::string text(static_cast<std::size_t>(what.st_size), '\0');
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t got = ::pread(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) refuse(got < 0 ? std::strerror(errno) : "it became shorter");
      done += static_cast<std::size_t>(got);
    }
    read(text, facts);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

AnswerFile::~AnswerFile() {
  ::close(file_);
}

void AnswerFile::refuse(const std::string& why) const {
  throw UserError(fmt::format("'{}': {}", printable(path_.string()), why));
}

void AnswerFile::refuse_plan(const std::string& arm, std::int64_t length) const {
  refuse(fmt::format(
      "has answers of the arm '{}' at {} tokens by another plan (has the profile changed?); give another -o",
      printable(arm), length));
}

void AnswerFile::read(const std::string& text, const Facts& facts) {
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < whole; ++number) {
    const std::size_t end = text.find('\n', begin);
    const Json line = Json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    begin = end + 1;
    if (number == 0) {
      if (!line.is_object() || line.value(kName, Json()) != kVersion) {
        refuse("is there and holds no answers of this version of glimpse; give another -o");
      }
      for (const auto& [name, value] : facts) {
        const Json there = line.value(name, Json());
        if (there == value) continue;
        refuse(fmt::format("has answers of another {}, {}, and this run has {}; give another -o", name,
                           there.is_string() ? printable(there.get<std::string>()) : "none", printable(value)));
      }
      continue;
    }
    try {
      auto [key, answer] = answer_of(line);
      const auto plan = plans_.try_emplace({key.arm, key.length}, line.at("plan").get<std::string>()).first;
      if (plan->second != line["plan"]) refuse_plan(key.arm, key.length);
      answers_.add(key, std::move(answer));
    } catch (const Json::exception&) {
      refuse(fmt::format("line {} is broken; move the file away, or give another -o", number + 1));
    }
  }
  Json head{{kName, kVersion}};
  for (const auto& [name, value] : facts) head[name] = value;
  const std::string first = line_of(head);
  if (whole == 0 && !first.starts_with(text)) refuse("is there and holds no answers; give another -o");
  size_ = static_cast<std::int64_t>(whole);
  if (whole < text.size() && ::ftruncate(file_, size_) != 0) refuse(std::strerror(errno));
  if (whole == 0) append(first);
}

void AnswerFile::set_plan(const std::string& arm, std::int64_t length, std::uint64_t plan) {
  const std::string text = plan_text(plan);
  const auto found = plans_.find({arm, length});
  if (found != plans_.end() && found->second != text) refuse_plan(arm, length);
  plans_[{arm, length}] = text;
}

void AnswerFile::append(const std::string& line) {
  if (write_all(file_, line)) {
    size_ += std::ssize(line);
    return;
  }
  const int error = errno;
  // What is left of the line would be taken away by the next run as well.
  if (::ftruncate(file_, size_) != 0) errno = 0;
  refuse(fmt::format("cannot be written: {}; what it has stays, and the same command goes on from there",
                     std::strerror(error)));
}

void AnswerFile::add(const evaluate::AnswerKey& key, const evaluate::Answer& answer) {
  append(line_of(json_of(key, answer, plans_.at({key.arm, key.length}))));
  answers_.add(key, answer);
}

}  // namespace glimpse::cli
