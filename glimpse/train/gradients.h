// What a draw of gates costs, asked of the program beside ours that has LibTorch (glimpse/train/torch): a line for each
// question on its standard input, a line for each answer on its standard output.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/device_name.h"
#include "glimpse/plan/plan.h"
#include "glimpse/train/training.h"

namespace glimpse::train {

/// Whose set a head of the next layer inherits while training.
enum class Handing : std::uint8_t {
  layer,  ///< its index's in the layer before, as in the paper
  role,   ///< as when it decodes: of the last layer in which its index's gate was above one half
};

struct GradientRequest {
  std::vector<std::int32_t> tokens;
  std::int64_t first = 0;  ///< of the target: tokens before it are the prompt, one or more
  plan::Budget budget;     ///< of a set, `tokens` or `ratio`
  Handing handing = Handing::layer;
  std::vector<double> gates;  ///< [layer behind layer 0, KV head], 0 to 1
};

/// One line, without its end, and back. Throws UserError for a line that is none.
std::string request_line(const GradientRequest& request);
GradientRequest parse_request(std::string_view line);
std::string answer_line(const Loss& loss);
std::string error_line(std::string_view what);
/// Throws UserError with the text of an error line.
Loss parse_answer(std::string_view line);

/// The program that answers, for one model. Ended when this object goes. One thread.
class GradientProgram {
 public:
  /// Throws UserError when it cannot be started. It reads the model when it is first asked.
  GradientProgram(const std::filesystem::path& program, const std::filesystem::path& model, int threads,
                  const DeviceName& device = {});
  ~GradientProgram();
  GradientProgram(const GradientProgram&) = delete;
  GradientProgram& operator=(const GradientProgram&) = delete;

  /// Waits for the answer. Throws UserError with the program's own reason, and when it ends without one.
  Loss ask(const GradientRequest& request);

 private:
  pid_t id_ = -1;
  int to_ = -1, from_ = -1;
  std::string read_;  ///< bytes behind the last answer
};

}  // namespace glimpse::train
