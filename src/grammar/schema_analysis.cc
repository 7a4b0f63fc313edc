// The second half of SchemaCompiler: what can only be known when all schemas are read.

#include <fmt/format.h>

#include <algorithm>

#include "base/limits.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_exclusion.h"

namespace k3 {
namespace {

using Kind = JsonForm::Kind;

}  // namespace

/// For each node the one where references alone lead from it, so that a long chain of them is not
/// walked again from every link. One that leads back to itself ends anywhere on its way.
std::vector<size_t> SchemaCompiler::FindTargets() const {
  constexpr size_t kUnknown = SIZE_MAX;
  constexpr size_t kOnTheWay = SIZE_MAX - 1;
  std::vector<size_t> targets(branches_.size(), kUnknown);
  for (size_t node = 0; node < targets.size(); ++node) {
    std::vector<size_t> way;
    size_t at = node;
    while (targets[at] == kUnknown) {
      targets[at] = kOnTheWay;
      way.push_back(at);
      const bool is_reference = grammar_.nodes_[at].forms.empty() && branches_[at].size() == 1;
      if (is_reference) at = static_cast<size_t>(branches_[at].front());
    }
    const size_t target = targets[at] == kOnTheWay ? at : targets[at];
    for (const size_t passed : way) targets[passed] = target;
  }
  return targets;
}

/// Gives every node the forms of the nodes it branches to, however far away, each once.
Status SchemaCompiler::Flatten() {
  const std::vector<size_t> targets = FindTargets();
  std::vector<JsonNode> flat(grammar_.nodes_.size());
  std::vector<size_t> seen(grammar_.nodes_.size(), SIZE_MAX);
  // Backwards, since most nodes branch to later ones, which then are flat already.
  for (size_t node = flat.size(); node-- > 0;) {
    std::vector<int32_t>& forms = flat[node].forms;
    const auto add = [&](int32_t form) {
      if (std::ranges::find(forms, form) == forms.end()) forms.push_back(form);
    };
    std::vector<size_t> open = {targets[node]};
    seen[targets[node]] = node;
    while (!open.empty()) {
      const size_t at = open.back();
      open.pop_back();
      const bool is_flat = at > node;
      std::ranges::for_each(is_flat ? flat[at].forms : grammar_.nodes_[at].forms, add);
      for (auto branch = branches_[at].rbegin(); branch != branches_[at].rend(); ++branch) {
        const size_t next = targets[static_cast<size_t>(*branch)];
        if (is_flat || seen[next] == node) continue;
        seen[next] = node;
        open.push_back(next);
      }
      if (std::ssize(forms) > limits::kSchemaFormsMax) {
        return InvalidArgument(
            fmt::format("{}: expected at most {} branches of anyOf or oneOf for one value, found "
                        "more; a longer list of fixed values is an enum",
                        options_.path, limits::kSchemaFormsMax));
      }
    }
  }
  grammar_.nodes_ = std::move(flat);
  return OkStatus();
}

int32_t SchemaCompiler::HeightOf(const JsonForm& form) const {
  if (form.kind == Kind::kLiterals) return form.height;
  if (form.count_min > form.count_max) return JsonGrammar::kNever;
  int32_t inside = 0;
  const auto add = [&](int32_t node) { inside = std::max(inside, grammar_.node(node).height); };
  if (form.kind == Kind::kObject) {
    for (const JsonMember& member : form.members) {
      if (member.is_required) add(member.node);
    }
  } else if (form.kind == Kind::kArray) {
    const auto prefix_count =
        std::min<int64_t>(form.count_min, static_cast<int64_t>(form.prefix.size()));
    for (int64_t i = 0; i < prefix_count; ++i) add(form.prefix[static_cast<size_t>(i)]);
    if (form.count_min > prefix_count) {
      if (form.rest < 0) return JsonGrammar::kNever;
      add(form.rest);
    }
  } else {
    return 0;
  }
  return inside >= limits::kJsonDepthMax ? JsonGrammar::kNever : inside + 1;
}

/// The least heights that satisfy all schemas: values that need themselves never get one. A round
/// settles all of one height, so that there are not many.
void SchemaCompiler::FindHeights() {
  for (JsonNode& node : grammar_.nodes_) node.height = JsonGrammar::kNever;
  for (JsonForm& form : grammar_.forms_) {
    if (form.kind != Kind::kLiterals) form.height = JsonGrammar::kNever;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (JsonForm& form : grammar_.forms_) {
      const int32_t height = HeightOf(form);
      if (height < form.height) {
        form.height = height;
        changed = true;
      }
    }
    for (JsonNode& node : grammar_.nodes_) {
      for (const int32_t form : node.forms) {
        if (grammar_.form(form).height >= node.height) continue;
        node.height = grammar_.form(form).height;
        changed = true;
      }
    }
  }
}

Status SchemaCompiler::CheckChoices() const {
  if (options_.is_relaxed) return OkStatus();
  SchemaExclusion exclusion(grammar_);
  for (const Choice& choice : choices_) {
    // Branches that no value satisfies, of which there may be many, exclude all others.
    std::vector<size_t> places;
    for (size_t i = 0; i < choice.nodes.size(); ++i) {
      if (!grammar_.node(choice.nodes[i]).forms.empty()) places.push_back(i);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (exclusion.Exclude(choice.nodes[places[i]], choice.nodes[places[j]])) continue;
        return RefuseChoice(choice, places[j], places[i], exclusion.is_exhausted());
      }
    }
  }
  return OkStatus();
}

Status SchemaCompiler::RefuseChoice(const Choice& choice, size_t first, size_t second,
                                    bool is_exhausted) const {
  if (is_exhausted) {
    return Refuse(choice.path,
                  fmt::format("expected at most {} comparisons of branches, names and fixed values "
                              "for all oneOf in one schema, found more; use anyOf",
                              SchemaExclusion::kComparisonsMax));
  }
  return Refuse(choice.path,
                fmt::format("branches {} and {} do not exclude each other by type, fixed values or "
                            "a required property with fixed values; use anyOf",
                            first, second));
}

}  // namespace k3
