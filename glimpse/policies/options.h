// How policies read PolicyOptions: every refusal in one place, in the same words. Holds references to the policy's
// name and options; use it inside `make` only. One thread each.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/policies/policy.h"

namespace glimpse::policies {

class OptionReader {
 public:
  /// Throws UserError when `options.extra` has a key that the table does not.
  OptionReader(std::string_view policy, std::span<const OptionHelp> table, const PolicyOptions& options);

  /// A reader of the options KEY.OPTION of the selector `name` that `key` chose. Throws UserError for one that `table`
  /// does not have.
  OptionReader nested(std::string_view key, std::string_view name, std::span<const OptionHelp> table) const;

  std::string_view policy() const { return policy_; }
  /// A key as --attn-opt takes it: "selector.gates" for the `gates` of a nested reader.
  std::string full_key(std::string_view key) const { return prefix_ + std::string(key); }
  plan::Budget budget(const plan::Budget& otherwise) const { return options_.budget.value_or(otherwise); }
  /// Refuses p=, tau= and coverage=, with `why` the method cannot have them.
  plan::Budget counted_budget(const plan::Budget& otherwise, std::string_view why) const;
  int block(int otherwise = 1) const { return options_.block.value_or(otherwise); }  ///< validation knows the blocks
  int sink(int otherwise) const;
  int local(int otherwise) const;

  /// The flags that this policy has no use for; each throws when it was given, with `why` as the cure.
  void refuse_budget(std::string_view why) const;
  void refuse_block(std::string_view why) const;
  void refuse_sink(std::string_view why) const;
  void refuse_local(std::string_view why) const;

  /// The value of an --attn-opt key as it was typed; nothing when it was not given.
  std::optional<std::string_view> text(std::string_view key) const;
  /// One of `words`; the first is the default.
  std::string_view choice(std::string_view key, std::span<const std::string_view> words) const;
  /// A layer in [first, last]; nothing when the key was not given or is one of `words`.
  std::optional<int> layer(std::string_view key, int first, int last, std::span<const std::string_view> words) const;

  /// Ascending layers in [first, last] with plus signs between, "2+8+18"; nothing as above.
  std::optional<std::vector<int>> layers(std::string_view key, int first, int last,
                                         std::span<const std::string_view> words) const;
  /// A whole number in [low, high]; nothing as above.
  std::optional<int> integer(std::string_view key, int low, int high, std::span<const std::string_view> words) const;
  /// A number in [low, high], or `otherwise`.
  double number(std::string_view key, double low, double high, double otherwise) const;
  /// "on" or "off".
  bool on(std::string_view key, bool otherwise) const;
  /// A number of tokens or heads, or a share of them: "64", "12.5%"; nothing as above.
  std::optional<plan::Budget> count(std::string_view key, std::span<const std::string_view> words) const;

  const plan::Profile* profile() const { return options_.profile; }
  /// "policy 'kascade': TEXT" for the user; see PolicyOptions::warnings.
  void warn(std::string_view text) const;
  /// For a profile beside options that leave it nothing to say: `why`, as a warning where nobody asks for it otherwise
  /// (PolicyOptions::profile_unused). Without a profile nothing.
  void leave_profile(std::string_view why) const;
  /// A warning that layers or heads are a guess: no option named them, and there is no profile. `guessed` says what was
  /// taken; the cure is added.
  void warn_guess(std::string_view guessed) const;

  /// "--attn-opt reselect=40 of policy 'tidal': TEXT"
  [[noreturn]] void refuse(std::string_view key, std::string_view value, std::string_view text) const;

 private:
  OptionReader(const OptionReader& outer, std::string prefix, std::span<const OptionHelp> table);

  struct WholeRange {
    std::string_view noun;
    int low, high;
    std::span<const std::string_view> words;
  };
  /// The value; nothing when the key was not given or is one of `words`.
  std::optional<std::string_view> beside(std::string_view key, std::span<const std::string_view> words) const;
  /// `part` of the value as a whole number in the range; refuses the value.
  int whole(std::string_view key, std::string_view value, std::string_view part, const WholeRange& range) const;
  int not_negative(std::string_view flag, const std::optional<int>& value, int otherwise) const;
  void refuse_flag(std::string_view flag, bool given, std::string_view why) const;

  std::string_view policy_;
  std::span<const OptionHelp> table_;
  const PolicyOptions& options_;
  std::string prefix_;  ///< of every key; "anchor-selector." for the options of a selector
};

inline constexpr std::array<std::string_view, 1> kAuto{"auto"};

/// The budget with a minimum that always holds the selector's sink, local window and current token: a share of a
/// short context may be smaller than that.
plan::Budget with_room(plan::Budget budget, const plan::Selector& selector);

}  // namespace glimpse::policies
