// Answers kept on disk as they come (JSONL), so that a run that was interrupted goes on where it was. The first line
// says what must be the same for answers to add up. A line is written whole and synced before the next answer is asked
// for; a last line that a killed process or a full disk cut short is taken away when the file is opened again. One
// process at a time has the file. Owns its descriptor; one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "glimpse/evaluate/answers.h"

namespace glimpse::cli {

class AnswerFile {
 public:
  /// What decides the answers, by name: "seed", "1". The model comes first.
  using Facts = std::vector<std::pair<std::string, std::string>>;

  /// Opens or makes it. Throws UserError: no file of answers, one of other facts, broken before its last line, in use
  /// by another process, unreadable.
  AnswerFile(std::filesystem::path path, const Facts& facts);
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  const evaluate::Answers& answers() const { return answers_; }
  /// Answers of the arm at that length are those of this plan. Throws UserError where the file has others.
  void set_plan(const std::string& arm, std::int64_t length, std::uint64_t plan);
  /// Throws UserError where the line cannot be written; the file is as before then.
  void add(const evaluate::AnswerKey& key, const evaluate::Answer& answer);

 private:
  using Place = std::pair<std::string, std::int64_t>;  // arm, length
  void read(const std::string& text, const Facts& facts);
  void append(const std::string& line);
  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse_plan(const std::string& arm, std::int64_t length) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t size_ = 0;  ///< bytes of whole lines
  evaluate::Answers answers_;
  std::map<Place, std::string> plans_;
};

}  // namespace glimpse::cli
