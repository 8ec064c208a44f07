#include "glimpse/train/gradients.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse::train {
namespace {

constexpr std::array<std::string_view, 2> kHandings{"layer", "role"};
constexpr std::string_view kLoss = "loss", kError = "error ";
constexpr std::size_t kMostNumbers = std::size_t{1} << 24;

[[noreturn]] void refuse(std::string_view what) {
  throw UserError(fmt::format("a line about gradients {}; are both programs of one version?", what));
}

class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  template <class Number>
  Number number() {
    const std::string_view word = next();
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) refuse("holds no number where one should be");
    return value;
  }
  /// A count, and so many numbers.
  template <class Number>
  std::vector<Number> numbers() {
    const auto count = number<std::size_t>();
    if (count > kMostNumbers) refuse("has a count beyond reason");
    std::vector<Number> values;
    while (values.size() < count) values.push_back(number<Number>());
    return values;
  }
  bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

template <class Number>
void append(std::string& line, const std::vector<Number>& values) {
  line += fmt::format(" {}", values.size());
  for (const Number value : values) line += fmt::format(" {}", value);
}

/// Ends of both pipes that a child must not keep are closed when it runs the program.
std::array<int, 2> ends_of_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw UserError(fmt::format("the system gives no pipe: {}; close some files", std::strerror(errno)));
  }
  return ends;
}

}  // namespace

std::string request_line(const GradientRequest& request) {
  check(request.budget.rule == plan::BudgetRule::tokens || request.budget.rule == plan::BudgetRule::ratio,
        "a budget of tokens");
  std::string line =
      fmt::format("{} {} {} {}", request.first, request.budget.rule == plan::BudgetRule::ratio ? "ratio" : "tokens",
                  request.budget.value, kHandings[static_cast<std::size_t>(request.handing)]);
  append(line, request.tokens);
  append(line, request.gates);
  return line;
}

GradientRequest parse_request(std::string_view line) {
  Words words(line);
  GradientRequest request;
  request.first = words.number<std::int64_t>();
  const std::string_view rule = words.next();
  if (rule != "ratio" && rule != "tokens") refuse("has an unknown budget");
  request.budget.rule = rule == "ratio" ? plan::BudgetRule::ratio : plan::BudgetRule::tokens;
  request.budget.value = words.number<double>();
  const auto handing = std::find(kHandings.begin(), kHandings.end(), words.next());
  if (handing == kHandings.end()) refuse("hands sets on in an unknown way");
  request.handing = static_cast<Handing>(handing - kHandings.begin());
  request.tokens = words.numbers<std::int32_t>();
  request.gates = words.numbers<double>();
  if (!words.done()) refuse("goes on behind its end");
  return request;
}

std::string answer_line(const Loss& loss) {
  std::string line = fmt::format("{} {}", kLoss, loss.value);
  append(line, loss.by_gate);
  return line;
}

std::string error_line(std::string_view what) {
  return fmt::format("{}{}", kError, printable(std::string(what.substr(0, what.find('\n')))));
}

Loss parse_answer(std::string_view line) {
  if (line.starts_with(kError)) throw UserError(std::string(line.substr(kError.size())));
  Words words(line);
  if (words.next() != kLoss) refuse("is no answer");
  Loss loss;
  loss.value = words.number<double>();
  loss.by_gate = words.numbers<double>();
  if (!words.done()) refuse("goes on behind its end");
  const bool finite = std::isfinite(loss.value) && std::all_of(loss.by_gate.begin(), loss.by_gate.end(),
                                                               [](double value) { return std::isfinite(value); });
  if (!finite) throw UserError("the loss is not finite: the model's logits are not");
  return loss;
}

GradientProgram::GradientProgram(const std::filesystem::path& program, const std::filesystem::path& model, int threads,
                                 const DeviceName& device) {
  const std::string path = program.string(), file = model.string(), number = std::to_string(threads),
                    on = to_string(device);
  std::array<char*, 5> words{const_cast<char*>(path.c_str()), const_cast<char*>(file.c_str()),
                             const_cast<char*>(number.c_str()), const_cast<char*>(on.c_str()), nullptr};
  const std::array<int, 2> answers = ends_of_pipe();
  std::array<int, 2> questions{};
  // A socket: a question to a program that has ended is an error then, and no signal.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, questions.data()) != 0) {
    for (const int end : answers) ::close(end);
    throw UserError(fmt::format("the system gives no socket: {}; close some files", std::strerror(errno)));
  }
  id_ = ::fork();
  if (id_ == 0) {
    ::setpgid(0, 0);  // Ctrl-C is the caller's to handle
    ::dup2(questions[0], 0);
    ::dup2(answers[1], 1);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  const int error = errno;
  ::close(questions[0]);
  ::close(answers[1]);
  to_ = questions[1];
  from_ = answers[0];
  if (id_ < 0) {
    ::close(to_);
    ::close(from_);
    throw UserError(fmt::format("the system gives no process for '{}': {}", printable(path), std::strerror(error)));
  }
}

GradientProgram::~GradientProgram() {
  ::close(to_);
  ::close(from_);
  ::kill(id_, SIGTERM);
  ::waitpid(id_, nullptr, 0);
}

Loss GradientProgram::ask(const GradientRequest& request) {
  const auto ended = [] {
    throw UserError(
        "the program glimpse-gradients ended without an answer: is there memory for the model's weights in "
        "float32?");
  };
  const std::string line = request_line(request) + "\n";
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t sent = ::send(to_, line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) ended();
    at += static_cast<std::size_t>(sent);
  }
  std::array<char, 65536> piece{};
  std::size_t end = read_.find('\n');
  while (end == std::string::npos) {
    const ssize_t size = ::read(from_, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) ended();
    read_.append(piece.data(), static_cast<std::size_t>(size));
    end = read_.find('\n');
  }
  const std::string answer = read_.substr(0, end);
  read_.erase(0, end + 1);
  return parse_answer(answer);
}

}  // namespace glimpse::train
