#include "glimpse/cli/roles.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/suggest.h"
#include "glimpse/base/whole_file.h"
#include "glimpse/calibrate/study.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/method_rows.h"
#include "glimpse/cli/profile_output.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile_file.h"
#include "glimpse/train/choices.h"
#include "glimpse/train/compare.h"
#include "glimpse/train/gradients.h"
#include "glimpse/train/passkeys.h"

namespace glimpse::cli {
namespace {

constexpr int kSaveEvery = 20;  // steps
constexpr int kCurveRows = 10;
constexpr std::array<std::string_view, 2> kHandings{"layer", "role"};

std::filesystem::path gradients_program() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::filesystem::path program = self.parent_path() / "glimpse-gradients";
  if (failed || ::access(program.c_str(), X_OK) != 0) {
    throw UserError(
        fmt::format("training head roles needs the program glimpse-gradients beside this one, and '{}' has none; build "
                    "it from the sources: scripts/build roles, which fetches LibTorch",
                    printable(self.parent_path().string())));
  }
  return program;
}

/// KV heads of the whole model, those of layer 0 among them.
int head_target(const Arguments& arguments, const plan::ModelShape& shape) {
  const int all = shape.layers * shape.kv_heads;
  const std::string& text = arguments.retrieval;
  std::optional<plan::Budget> given;
  try {
    given = plan::parse_budget(text);
  } catch (const UserError&) {  // said below
  }
  const bool counted = given && (given->rule == plan::BudgetRule::tokens || given->rule == plan::BudgetRule::ratio);
  const double wanted = !counted ? 0 : given->rule == plan::BudgetRule::tokens ? given->value : given->value * all;
  const int count = static_cast<int>(std::round(std::clamp(wanted, 0.0, 1.0 * all + 1)));
  if (count <= shape.kv_heads || count >= all) {
    throw UserError(
        fmt::format("--retrieval '{}': the model has {} KV heads, of which the {} of layer 0 always are "
                    "retrieval heads; give a number or a share between, such as 12.5%",
                    printable(text), all, shape.kv_heads));
  }
  return count;
}

plan::Budget train_budget(const Arguments& arguments) {
  const plan::Budget budget = parse_of("--train-budget", arguments.train_budget, plan::parse_budget);
  if (budget.rule != plan::BudgetRule::tokens && budget.rule != plan::BudgetRule::ratio) {
    throw UserError(
        fmt::format("--train-budget '{}': sets of a training have a number of tokens or a share of the "
                    "context, such as 30%",
                    printable(arguments.train_budget)));
  }
  return budget;
}

train::Handing handing_of(const Arguments& arguments) {
  const auto found = std::find(kHandings.begin(), kHandings.end(), arguments.hand_on);
  if (found == kHandings.end()) throw UserError(unknown_name("value of --hand-on", arguments.hand_on, kHandings));
  return static_cast<train::Handing>(found - kHandings.begin());
}

/// The training's state in a file beside the profile.
class StateFile {
 public:
  StateFile(const Arguments& arguments, const std::filesystem::path& profile, std::uint64_t of)
      : path_(profile.string() + ".training"), quiet_(arguments.quiet), of_(of) {}

  train::RoleTraining start(const train::TrainingOptions& options) const {
    constexpr std::size_t kMost = std::size_t{256} << 20;
    const std::optional<std::string> text = read_whole_file(path_, kMost);
    if (!text) return train::RoleTraining(options);
    if (!train::RoleTraining::is_text(*text)) {
      throw UserError(fmt::format("'{}' is there and holds no training; move it away, or name another profile with -o",
                                  printable(path_.string())));
    }
    auto found = train::RoleTraining::parse(*text, options, of_);
    note(found ? fmt::format("going on behind step {} of '{}'", found->step(), path_.string())
               : fmt::format("warning: '{}' is of another model or other options and is replaced", path_.string()));
    return found ? *std::move(found) : train::RoleTraining(options);
  }
  void save(const train::RoleTraining& training) const { replace_file(path_, training.text(of_)); }
  void remove() const {
    std::error_code failed;
    std::filesystem::remove(path_, failed);
  }

 private:
  void note(const std::string& text) const {
    if (!quiet_) print_note(printable(text));
  }
  std::filesystem::path path_;
  bool quiet_;
  std::uint64_t of_;
};

/// Everything that decides what is trained, and on what.
std::uint64_t identity(const Arguments& arguments, const engine::Engine& engine, const train::TrainingOptions& options,
                       std::int64_t length, const std::string& prose) {
  const std::string text =
      fmt::format("{:016x} {} {} {} {} {} {} {} {}\n{}", engine.fingerprint(), name(options.gate), options.target,
                  options.steps, options.rate, options.seed, length, arguments.train_budget, arguments.hand_on, prose);
  return checksum(std::as_bytes(std::span(text)));
}

/// False: interrupted.
bool run_training(const Arguments& arguments, train::RoleTraining& training, int steps, const train::LossOf& loss,
                  const StateFile& file, const InterruptGuard& interrupt) {
  ProgressBar progress("train", "steps", !arguments.quiet);
  while (!training.done()) {
    if (interrupt.requested()) break;
    training.advance(loss);
    progress.update(training.step(), steps);
    if (training.step() % kSaveEvery == 0 || training.done()) file.save(training);
  }
  progress.clear();
  file.save(training);
  return training.done();
}

std::string curve_text(const train::RoleTraining& training, int kv_heads) {
  std::string text = "| steps | loss | open heads | multiplier |\n| --- | --- | --- | --- |\n";
  const auto& curve = training.curve();
  const std::size_t rows = std::min<std::size_t>(kCurveRows, curve.size());
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t begin = row * curve.size() / rows, end = (row + 1) * curve.size() / rows;
    double loss = 0;
    for (std::size_t i = begin; i < end; ++i) loss += curve[i].loss / static_cast<double>(end - begin);
    text += fmt::format("| {} | {:.4g} | {:.1f} | {:.3g} |\n", end, loss, curve[end - 1].open + kv_heads,
                        curve[end - 1].multiplier);
  }
  return text;
}

void write_curve(const std::string& path, const train::RoleTraining& training, int kv_heads) {
  std::string text = "step\tloss\topen_heads\tmultiplier\n";
  for (std::size_t i = 0; i < training.curve().size(); ++i) {
    const train::CurvePoint& point = training.curve()[i];
    text += fmt::format("{}\t{}\t{}\t{}\n", i + 1, point.loss, point.open + kv_heads, point.multiplier);
  }
  replace_file(path, text);
}

std::string comparison_text(const train::Comparison& comparison) {
  std::string text = fmt::format(
      "\n{} passkeys of other books; dense attention gives {:.1f} % of their words\n\n"
      "| as many heads by | budget | KL to dense | agreement | words |\n| --- | --- | --- | --- | --- |\n",
      comparison.prompts, 100 * comparison.dense);
  for (const train::ComparedRow& row : comparison.rows) {
    text += fmt::format("| {} | {} | {:.4f} | {:.1f} % | {:.1f} % |\n", row.choice, row.budget, row.divergence,
                        100 * row.agreement, 100 * row.passkeys);
  }
  return text;
}

/// Where the profile goes. The engine gets room for the prompts that its other methods were measured in.
std::filesystem::path place_of(const Arguments& arguments, engine::EngineOptions& how) {
  const model::Model file{std::filesystem::path(arguments.model)};
  Arguments here = arguments;
  here.device = "cpu";  // --device is that of the training
  const PlanModel model = plan_model(file, here);
  std::filesystem::path path = profile_output(arguments, model);
  require_profile_place(path);
  require_own_profile(arguments, path, model);
  if (const auto there = profile_at(path)) {
    how.context = std::max(how.context, std::min<std::int64_t>(measured_context(*there), model.shape.context));
  }
  return path;
}

}  // namespace

int train_roles(const Arguments& arguments, engine::EngineOptions how) {
  const std::filesystem::path program = gradients_program();
  train::TrainingOptions options;
  options.gate = train::parse_gate(arguments.gate);
  options.steps = static_cast<int>(arguments.train_steps);
  options.rate = arguments.learning_rate;
  options.seed = static_cast<std::uint64_t>(arguments.seed);
  const plan::Budget budget = train_budget(arguments);
  const train::Handing handing = handing_of(arguments);
  const auto prose_file = text_file(arguments);
  const std::string prose = prose_file ? read_text(*prose_file) : "";
  const DeviceName device = how.device;  // of the training; heads are compared on the CPU
  how.device = {};
  how.sequences = train::kComparedSequences;
  const InterruptGuard interrupt;
  const std::int64_t asked = how.context;
  const std::filesystem::path path = place_of(arguments, how);
  engine::Engine engine(how);
  const plan::ModelShape shape = engine.shape();
  if (!arguments.curve.empty()) require_replaceable(arguments.curve);
  if (shape.layers < 2) throw UserError("the model has 1 layer; roles need 2 or more");
  options.heads = (shape.layers - 1) * shape.kv_heads;
  options.target = head_target(arguments, shape) - shape.kv_heads;
  const std::int64_t length =
      std::min({asked, engine.context(), static_cast<std::int64_t>(shape.context)}) - calibrate::kAnswerRoom;
  train::PasskeyExamples examples(engine.tokenizer(), prose, length, options.seed);

  const StateFile file(arguments, path, identity(arguments, engine, options, length, prose));
  train::RoleTraining training = file.start(options);
  const int threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : cpu_cores();
  bool trained = training.done();
  if (!trained) {
    train::GradientProgram gradients(program, arguments.model, threads, device);
    trained = run_training(
        arguments, training, options.steps,
        [&](int step, std::span<const double> gates) {
          train::PasskeyExample example = examples.at(step);
          return gradients.ask(
              {std::move(example.tokens), example.first, budget, handing, {gates.begin(), gates.end()}});
        },
        file, interrupt);
  }
  const std::vector<double> expected = training.expected_gates();
  const plan::RolesProfile found = train::roles_of(shape, expected);
  const plan::RolesProfile roles =
      arguments.exact ? train::strongest_roles(shape, expected, static_cast<int>(options.target)) : found;
  std::optional<train::Comparison> comparison;
  if (trained) {
    const train::CompareOptions compare{length, prose, options.seed, {budget, plan::parse_budget("10%")}};
    ProgressBar bar("compare", "tokens", !arguments.quiet);
    const evaluate::Progress::Callback callback = [&](std::int64_t done, std::int64_t total) {
      bar.update(done, total);
      return !interrupt.requested();
    };
    evaluate::Progress progress(callback, train::compare_work(compare));
    try {
      comparison = train::compared(engine, roles, compare, progress);
    } catch (const evaluate::Stopped&) {
    }
    bar.clear();
  }
  if (!comparison) {
    print_note(printable(
        fmt::format("interrupted; '{}' is not written; the same command goes on where this one was", path.string())));
    return kExitInterrupted;
  }
  plan::Profile profile = plan::empty_profile(shape);
  profile.fingerprint = engine.fingerprint();
  profile.roles = roles;
  plan::save_profile(path, with_roles(path, std::move(profile)));
  if (!arguments.curve.empty()) write_curve(arguments.curve, training, shape.kv_heads);
  const std::optional<std::string> rows =
      add_role_rows(arguments, engine, {length, prose, options.seed}, {path, interrupt, true});
  if (!rows) {
    print_note(printable(fmt::format(
        "interrupted; the roles are in '{}', and what they keep is not measured; the same command goes on where this "
        "one was",
        path.string())));
    return kExitInterrupted;
  }
  file.remove();
  const int open = train::retrieval_heads(shape, found) + shape.kv_heads;
  print(fmt::format(
            "{} steps on passkeys in {} tokens: {} of {} KV heads have E[z] above 0.5, asked for were {:.0f}{}\n\n",
            training.step(), length, open, shape.layers * shape.kv_heads, options.target + shape.kv_heads,
            arguments.exact ? ", and so many are written" : "") +
        curve_text(training, shape.kv_heads) + comparison_text(*comparison) + *rows + profile_line(arguments, path));
  return kExitOk;
}

}  // namespace glimpse::cli
