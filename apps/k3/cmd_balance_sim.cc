// k3 balance-sim: how fast each way of balancing evens out a router that prefers some experts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "config/json.h"
#include "engine_options.h"
#include "number_check.h"
#include "sys/machine.h"
#include "terminal/terminal.h"
#include "train/balance_simulation.h"

namespace k3::cli {
namespace {

struct BalanceSimFlags {
  train::BalanceSimulationOptions simulation;
  int threads = 0;
  bool json = false;
};

std::string FormatJson(const std::vector<train::BalanceCurve>& curves) {
  JsonValue::Members members;
  for (const train::BalanceCurve& curve : curves) {
    JsonValue::Items violations;
    for (const double violation : curve.max_violation) violations.emplace_back(violation);
    members.emplace_back(curve.method, JsonValue(std::move(violations)));
  }
  return DumpJson(JsonValue(std::move(members))) + "\n";
}

/// A column for each method, a row for each step.
std::string FormatTable(const std::vector<train::BalanceCurve>& curves) {
  std::string out = "largest load over the mean, less 1 (MaxVio), after so many updates\n\nupdates";
  for (const train::BalanceCurve& curve : curves) out += fmt::format(" {:>13}", curve.method);
  for (size_t step = 0; step < curves.front().max_violation.size(); ++step) {
    out += fmt::format("\n{:>7}", step);
    for (const train::BalanceCurve& curve : curves) {
      out += fmt::format(" {:>13.3f}", curve.max_violation[step]);
    }
  }
  out += "\n   dead";
  for (const train::BalanceCurve& curve : curves) {
    out += fmt::format(" {:>13}", curve.dead_experts.back());
  }
  return out + "   experts without a token in the last step\n";
}

Result<int> BalanceSim(const BalanceSimFlags& flags) {
  ThreadPool pool(flags.threads > 0 ? flags.threads : UsableCores());
  K3_TRY(const std::vector<train::BalanceCurve> curves,
         train::SimulateBalancing(flags.simulation, pool));
  K3_RETURN_IF_ERROR(WriteOutput(flags.json ? FormatJson(curves) : FormatTable(curves)));
  return kExitOk;
}

}  // namespace

void AddBalanceSimCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto flags = std::make_shared<BalanceSimFlags>();
  CLI::App* command = app.add_subcommand(
      "balance-sim", "Simulate how experts are balanced, from a router that prefers some of them.");
  const auto add = [&](const std::string& name, int64_t& value, const std::string& help) {
    command->add_option(name, value, help)
        ->transform(WholeNumber(INT64_MAX))
        ->type_name("N")
        ->capture_default_str();
  };
  add("--experts", flags->simulation.experts, "Experts.");
  add("--active", flags->simulation.active, "Experts that a token goes to.");
  add("--tokens", flags->simulation.tokens, "Tokens a step, fresh ones each time.");
  add("--steps", flags->simulation.steps, "Steps, the one before the first update included.");
  command->add_option("--seed", flags->simulation.seed, "Another router and other tokens.")
      ->transform(WholeNumber(UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json,
                    "Prints JSON: for each method the list of MaxVio by step.");
  AddThreadsOption(*command, &flags->threads);
  command->footer(
      "Methods: none; sign_S, which moves each bias by S towards the mean load; qb_exact and\n"
      "qb_histogram, Quantile Balancing from all tokens or from 1,000 bins an expert. With\n"
      "q = tokens x active / experts, chance alone leaves about 3.2 sqrt(2 / q) for 896 "
      "experts.\n\n"
      "Example:\n"
      "  k3 balance-sim --steps 5");
  command->callback(
      [flags, &invocation] { invocation.command = [flags] { return BalanceSim(*flags); }; });
}

}  // namespace k3::cli
