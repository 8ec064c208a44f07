// glimpse-gradients MODEL THREADS DEVICE: answers what draws of gates cost, a line for each line
// (glimpse/train/gradients.h). Started by `glimpse calibrate roles`; ends with its standard input.
#include <charconv>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

#include "glimpse/base/device_name.h"
#include "glimpse/model/model.h"
#include "glimpse/train/gradients.h"
#include "glimpse/train/torch/student.h"

namespace {

using namespace glimpse;  // NOLINT(google-build-using-namespace)

/// Of the command line.
struct Setting {
  const char* model = nullptr;
  int threads = 0;
  const char* device = nullptr;
};

std::string answer(std::optional<train::Student>& student, const Setting& setting, const std::string& line) {
  try {
    const train::GradientRequest request = train::parse_request(line);
    if (!student) student.emplace(model::Model(setting.model), setting.threads, parse_device(setting.device));
    return train::answer_line(student->distilled(request));
  } catch (const std::exception& error) {
    return train::error_line(error.what());
  }
}

}  // namespace

int main(int count, char** words) {
  int threads = 0;
  const std::string number = count == 4 ? words[2] : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), threads);
  if (error != std::errc() || end != number.data() + number.size() || threads < 1) {
    std::fputs("error: usage: glimpse-gradients MODEL THREADS DEVICE; 'glimpse calibrate roles' starts it\n", stderr);
    return 2;
  }
  std::optional<train::Student> student;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(student, {words[1], threads, words[3]}, line) << std::endl;
  }
  return 0;
}
