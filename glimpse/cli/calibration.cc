#include "glimpse/cli/calibration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/whole_file.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/profile_output.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {
namespace {

/// As `glimpse calibrate` has them without flags.
constexpr std::int64_t kUsualContext = 4096;
constexpr std::uint64_t kUsualSeed = 1;

bool has_times(const plan::Profile* profile) {
  return profile != nullptr && profile->speed;
}

/// A method of the command line.
struct Method {
  std::string name;
  policies::PolicyOptions options;
};

/// True where the method would guess, and no profile is found.
bool lacks(const Arguments& arguments, const Method& method, const PlanModel& model) {
  if (method.name == kAuto) return !has_times(any_profile(arguments, model));
  if (method.options.profile_budget)
    return false;  // what is made here has no budgets: the plan's refusal says the cure
  return policies::guesses(method.name, model.shape, method.options) && any_profile(arguments, model) == nullptr;
}

struct Missing {
  std::filesystem::path path;  ///< of the profile; empty: the model lacks none, or can have none
  std::int64_t context = 0;    ///< that the model was made for
};

Missing missing_profile(const Arguments& arguments, const std::vector<Method>& methods) {
  const model::Model model{std::filesystem::path(arguments.model)};
  const PlanModel of = plan_model(model, arguments);
  const std::filesystem::path folder = profile_folder(arguments);
  const bool can = arguments.calibrate || model.file().metadata().find("tokenizer.chat_template") != nullptr;
  const auto lacking = [&](const Method& method) { return lacks(arguments, method, of); };
  if (folder.empty() || !can || std::none_of(methods.begin(), methods.end(), lacking)) return {};
  return {plan::profile_path(folder, of.fingerprint()), of.shape.context};
}

/// False: interrupted.
bool make_profile(const Arguments& arguments, const Missing& missing) {
  require_profile_place(missing.path);
  const InterruptGuard interrupt;  // before the note, whose reader may press Ctrl-C
  if (!arguments.quiet) {
    print_note(
        fmt::format("the model has no profile that the method needs: it is calibrated first, once; the profile "
                    "goes to '{}'",
                    printable(missing.path.string())));
  }
  engine::EngineOptions how = engine_options(arguments);
  how.context = std::min(kUsualContext, missing.context);
  how.sequences = calibrate::study_sequences(how.context);
  engine::Engine engine(how);
  calibrate::CalibrationOptions options;
  options.study.length = engine.context() - calibrate::kAnswerRoom;
  options.study.seed = kUsualSeed;
  auto found = run_calibration(arguments, engine, std::move(options), {missing.path, interrupt, true});
  if (!found) return false;
  keep_times(missing.path, found->profile);
  plan::save_profile(missing.path, found->profile);
  remove_part(missing.path);
  return true;
}

/// What calibrate_first does for these methods.
bool calibrate_for(const Arguments& arguments, std::vector<Method> methods) {
  std::erase_if(methods, [](const Method& method) { return !takes_profiles(method.name); });
  if (methods.empty()) return true;
  const bool terminal = !arguments.quiet && ::isatty(2) != 0;
  if (arguments.model.empty() || arguments.profile || !(arguments.calibrate || terminal)) return true;
  const Missing missing = missing_profile(arguments, methods);
  if (missing.path.empty()) return true;
  bool made = true;
  try {
    made = make_profile(arguments, missing);
  } catch (const UserError& error) {
    if (arguments.calibrate) throw;
    print_note(printable(fmt::format("warning: no profile can be made: {}", error.what())));
  }
  forget_profile(arguments);
  return made;
}

std::filesystem::path part_path(const std::filesystem::path& path) {
  return path.string() + ".part";
}

/// What is measured, in a file beside the profile.
class PartFile {
 public:
  /// Reads what is there; what is of another model or other options is said to be left out.
  PartFile(const Arguments& arguments, const CalibrationPlace& place, std::uint64_t of)
      : path_(part_path(place.path)), quiet_(arguments.quiet), measured_(of) {
    constexpr std::size_t kMost = std::size_t{16} << 20;
    if (!place.goes_on) return;
    if (const std::optional<std::string> text = read_whole_file(path_, kMost)) {
      if (!calibrate::Measured::is_text(*text)) {
        throw UserError(
            fmt::format("'{}' is there and holds no measurements; move it away, or name another profile "
                        "with -o",
                        printable(path_.string())));
      }
      auto found = calibrate::Measured::parse(*text, of);
      note(found ? fmt::format("going on with what '{}' has", path_.string())
                 : fmt::format("warning: '{}' is of another model, other options or another version, and is replaced",
                               path_.string()));
      if (found) measured_ = *std::move(found);
    }
    measured_.on_add([this](const calibrate::Measured& all) { save(all); });
  }
  calibrate::Measured& measured() { return measured_; }
  bool saved() const { return saved_; }

 private:
  void note(const std::string& text) const {
    if (!quiet_) print_note(printable(text));
  }
  /// A calibration does not fail for want of room for its parts.
  void save(const calibrate::Measured& all) {
    if (failed_) return;
    try {
      replace_file(path_, all.text());
      saved_ = true;
    } catch (const UserError& error) {
      failed_ = true;
      note(fmt::format("warning: an interrupted calibration will begin again: {}", error.what()));
    }
  }

  std::filesystem::path path_;
  bool quiet_, saved_ = false, failed_ = false;
  calibrate::Measured measured_;
};

/// What decides what is measured.
std::uint64_t identity(const Arguments& arguments, const engine::Engine& engine, calibrate::Part part,
                       const calibrate::StudyOptions& study) {
  const std::string text =
      fmt::format("{:016x} {} {} {} {} {} {}\n{}", engine.fingerprint(), static_cast<int>(part), study.length,
                  study.seed, name(engine.kv_type()), arguments.prefill_chunk, engine.device_name(), study.text);
  return checksum(std::as_bytes(std::span(text)));
}

/// What `calibration` finds, beside a progress bar; what it measured is kept in `part`.
template <class Options, class Calibrate>
auto with_progress(const Arguments& arguments, Options options, const CalibrationPlace& place, PartFile& part,
                   const Calibrate& calibration) {
  ProgressBar progress("calibrate", "tokens", !arguments.quiet);
  options.measured = &part.measured();
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !place.interrupt.requested();
  };
  auto found = calibration(options);
  progress.clear();
  return found;
}

/// The same with a part file of the identity `of`; says what is left where it was interrupted.
template <class Options, class Calibrate>
auto run_measured(const Arguments& arguments, const Options& options, const CalibrationPlace& place, std::uint64_t of,
                  const Calibrate& calibration) {
  PartFile part(arguments, place, of);
  auto found = with_progress(arguments, options, place, part, calibration);
  if (!found) {
    print_note(printable(fmt::format("interrupted; '{}' is not written{}", place.path.string(),
                                     part.saved() ? "; the same command goes on where this one was" : "")));
  }
  return found;
}

}  // namespace

void require_profile_place(const std::filesystem::path& path) {
  std::error_code failed;
  if (std::filesystem::is_regular_file(path, failed) && std::filesystem::file_size(path, failed) > 0) {
    constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
    const bool small = std::filesystem::file_size(path, failed) <= kMost;
    if (!small || !plan::is_profile_text(read_file(path.string()))) {
      throw UserError(
          fmt::format("'{}' is there and is no profile; give another name with -o", printable(path.string())));
    }
  }
  require_replaceable(path);
}

void remove_part(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::remove(part_path(path), failed);
}

std::optional<calibrate::Calibration> run_calibration(const Arguments& arguments, engine::Engine& engine,
                                                      calibrate::CalibrationOptions options,
                                                      const CalibrationPlace& place) {
  const std::uint64_t of = place.goes_on ? identity(arguments, engine, options.part, options.study) : 0;
  options.processor = machine_of(engine).processor;
  auto found = run_measured(arguments, options, place, of, [&](const calibrate::CalibrationOptions& how) {
    return calibrate::calibrate(engine, how);
  });
  if (found) found->profile.fingerprint = engine.fingerprint();
  return found;
}

std::optional<calibrate::BudgetCalibration> run_calibration(const Arguments& arguments, engine::Engine& engine,
                                                            calibrate::BudgetOptions options,
                                                            const CalibrationPlace& place) {
  const std::uint64_t of = identity(arguments, engine, calibrate::Part::budget, options.study);
  auto found = run_measured(arguments, options, place, of, [&](const calibrate::BudgetOptions& how) {
    return calibrate::calibrate_budgets(engine, how);
  });
  if (found) found->profile.fingerprint = engine.fingerprint();
  return found;
}

std::optional<plan::Profile> run_measurement(const Arguments& arguments, engine::Engine& engine,
                                             const MethodsInProfile& of, calibrate::CalibrationOptions options,
                                             const CalibrationPlace& place) {
  options.part = calibrate::Part::methods;
  options.processor = machine_of(engine).processor;
  PartFile part(arguments, place, identity(arguments, engine, options.part, options.study));
  std::optional<plan::Profile> rows =
      with_progress(arguments, options, place, part, [&](const calibrate::CalibrationOptions& how) {
        return calibrate::measure_methods(engine, of.profile, of.methods, how);
      });
  if (rows) rows->fingerprint = engine.fingerprint();
  return rows;
}

bool calibrate_first(const Arguments& arguments) {
  if (arguments.plan_file) return true;
  if (arguments.policy != kAuto) return calibrate_for(arguments, {{arguments.policy, policy_options(arguments)}});
  return calibrate_for(arguments, {{arguments.policy, {}}});
}

bool calibrate_first(const Arguments& arguments, std::span<const Arm> arms) {
  std::vector<Method> methods;
  for (const Arm& arm : arms) methods.push_back({arm.policy, arm.options});
  return calibrate_for(arguments, std::move(methods));
}

}  // namespace glimpse::cli
