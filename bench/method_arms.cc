#include "bench/method_arms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/policies/policy.h"

namespace glimpse::bench {
namespace {

struct Method {
  std::string written, name;
  policies::PolicyOptions options;
  bool by_name = true;  ///< not by "all" or as a variant
};

int whole_number(const std::string& method, const std::string& key, const std::string& value) {
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    throw UserError(fmt::format("method '{}': {}={} is no whole number; give {}=N", method, key, value, key));
  }
  return number;
}

Method parse_method(const std::string& written, bool by_name) {
  Method method{written, written.substr(0, written.find('/')), {}, by_name};
  policies::find_policy(method.name);  // refuses an unknown name before a model is loaded
  for (std::size_t begin = method.name.size(); begin < written.size();) {
    const std::size_t end = std::min(written.find('/', begin + 1), written.size());
    const std::string part = written.substr(begin + 1, end - begin - 1);
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UserError(fmt::format("method '{}': '{}' is no option; write NAME/KEY=VALUE/KEY=VALUE", written, part));
    }
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
    bool fresh = true;
    const auto set = [&](std::optional<int>& flag) {
      fresh = !flag;
      flag = whole_number(written, key, value);
    };
    if (key == "block") {
      set(method.options.block);
    } else if (key == "sink") {
      set(method.options.sink);
    } else if (key == "local") {
      set(method.options.local);
    } else {
      fresh = method.options.extra.emplace(key, value).second;
    }
    if (!fresh) throw UserError(fmt::format("method '{}': '{}' is given twice", written, key));
    begin = end;
  }
  return method;
}

std::vector<Method> parse_methods(const ArmRequest& request) {
  std::vector<Method> methods;
  const auto add = [&](const std::string& written, bool by_name) {
    const bool there =
        std::any_of(methods.begin(), methods.end(), [&](const Method& m) { return m.written == written; });
    if (there && by_name && written != "full") throw UserError(fmt::format("method '{}' is given twice", written));
    if (!there) methods.push_back(parse_method(written, by_name));
  };
  add("full", true);
  for (const std::string& written : request.methods) {
    if (written != "all") {
      add(written, true);
      continue;
    }
    for (const policies::Policy& policy : policies::registry()) add(std::string(policy.name), false);
  }
  if (request.variants) {
    for (const std::string& written : variant_methods()) add(written, false);
  }
  return methods;
}

plan::Plan plan_of(const Method& method, const std::string& budget, const plan::ModelShape& shape,
                   policies::PolicyOptions options) {
  if (!budget.empty()) options.budget = plan::parse_budget(budget);
  plan::Plan plan = policies::make_plan(method.name, shape, options);
  attention::require_supported(plan);
  return plan;
}

std::vector<std::string> checked_budgets(const ArmRequest& request) {
  const std::vector<std::string> budgets = cli::join_budgets(request.budgets);
  for (auto it = budgets.begin(); it != budgets.end(); ++it) {
    plan::parse_budget(*it);
    if (std::find(budgets.begin(), it, *it) != it) {
      throw UserError(fmt::format("budget '{}' is given twice; leave one out", *it));
    }
  }
  return budgets;
}

void check_sparse_prefill(const ArmRequest& request) {
  if (!request.sparse_prefill) return;
  const plan::BudgetRule rule = plan::parse_budget(*request.sparse_prefill).rule;
  if (rule != plan::BudgetRule::tokens && rule != plan::BudgetRule::ratio) {
    throw UserError(fmt::format("--sparse-prefill {}: tiles need a budget in tokens (512) or as a share (10%)",
                                *request.sparse_prefill));
  }
}

}  // namespace

const std::vector<std::string>& variant_methods() {
  static const std::vector<std::string> methods{
      "kascade/pooling=query",  // before softmax
      "kascade/prefill=dense",  // decode only
      "kascade/pooling=query/prefill=dense",
      "kascade/set=layer",
      "kascade/set=layer/prefill=dense",
      "kascade/anchors=all",  // the paper's oracle
      "evosparse/lambda=0.8",
      "evosparse/lambda=0.95",
      "evosparse/lambda=1",
      "evosparse/prop=off",
      "lychee-cluster/pooling=max",
      "lychee-cluster/chunks=fixed",
      "quest/score=meanstd",
      "tidal/set=query-head",
      "tidal/set=layer",
  };
  return methods;
}

std::vector<Arm> make_arms(const plan::ModelShape& shape, const ArmRequest& request,
                           std::vector<std::string>& warnings) {
  const std::vector<std::string> given = checked_budgets(request);
  check_sparse_prefill(request);
  std::vector<Arm> arms;
  for (const Method& method : parse_methods(request)) {
    std::vector<std::string> budgets = given;
    if (method.name == "full") budgets = {""};
    if (method.name == "kascade" && std::find(budgets.begin(), budgets.end(), "10%") == budgets.end()) {
      budgets.push_back("10%");
    }
    std::vector<std::string> heard;
    policies::PolicyOptions options = method.options;
    options.warnings = &heard;
    const policies::Policy& policy = policies::find_policy(method.name);
    if (request.profile != nullptr && policies::uses_profile(policy, *request.profile)) {
      options.profile = request.profile;
    }
    std::size_t refused = 0;
    for (const std::string& budget : budgets) {
      Arm arm{method.written, budget, plan::dense_plan(shape), plan::dense_plan(shape), ""};
      try {
        arm.plan = arm.prefill_plan = plan_of(method, budget, shape, options);
        if (arm.plan.prefill.sparse && request.sparse_prefill) {
          arm.prefill_plan = plan_of(method, *request.sparse_prefill, shape, options);
        }
      } catch (const UserError& error) {
        arm.refused = error.what();
        ++refused;
      }
      arms.push_back(std::move(arm));
    }
    if (method.by_name && refused == budgets.size()) throw UserError(arms.back().refused);
    for (const std::string& line : heard) {
      if (std::find(warnings.begin(), warnings.end(), line) == warnings.end()) warnings.push_back(line);
    }
  }
  return arms;
}

}  // namespace glimpse::bench
