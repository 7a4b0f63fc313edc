// The second half of SchemaCompiler: what can only be known when all schemas are read.

#include <fmt/format.h>

#include <algorithm>

#include "base/limits.h"
#include "grammar/schema_compiler.h"

namespace k3 {
namespace {

using Kind = JsonForm::Kind;

bool ShareNone(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::none_of(
      a, [&](const std::string& text) { return std::ranges::binary_search(b, text); });
}

}  // namespace

/// Gives every node the forms of the nodes it branches to, however far away, each once.
Status SchemaCompiler::Flatten() {
  std::vector<JsonNode> flat(grammar_.nodes_.size());
  std::vector<size_t> seen(grammar_.nodes_.size(), SIZE_MAX);
  for (size_t node = 0; node < flat.size(); ++node) {
    std::vector<size_t> open = {node};
    seen[node] = node;
    while (!open.empty()) {
      const size_t at = open.back();
      open.pop_back();
      for (const int32_t form : grammar_.nodes_[at].forms) flat[node].forms.push_back(form);
      for (auto branch = branches_[at].rbegin(); branch != branches_[at].rend(); ++branch) {
        const auto next = static_cast<size_t>(*branch);
        if (seen[next] == node) continue;
        seen[next] = node;
        open.push_back(next);
      }
      if (std::ssize(flat[node].forms) > limits::kSchemaFormsMax) {
        return InvalidArgument(
            fmt::format("{}: expected at most {} branches of anyOf or oneOf for one value, found "
                        "more",
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
  for (const Choice& choice : choices_) {
    for (size_t i = 0; i < choice.nodes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Exclude(choice.nodes[i], choice.nodes[j])) continue;
        return InvalidArgument(fmt::format(
            "{}: branches {} and {} do not exclude each other by type, fixed values or a required "
            "property with fixed values; use anyOf",
            choice.path, j, i));
      }
    }
  }
  return OkStatus();
}

bool SchemaCompiler::Exclude(int32_t a, int32_t b) const {
  for (const int32_t form : grammar_.node(a).forms) {
    for (const int32_t other : grammar_.node(b).forms) {
      if (!FormsExclude(grammar_.form(form), grammar_.form(other))) return false;
    }
  }
  return true;
}

bool SchemaCompiler::FormsExclude(const JsonForm& a, const JsonForm& b) const {
  if (a.type != b.type) return true;
  if (a.kind == Kind::kLiterals && b.kind == Kind::kLiterals) {
    return ShareNone(a.literals, b.literals);
  }
  if (a.kind != Kind::kObject || b.kind != Kind::kObject) return false;
  // A property that both must have and that has other fixed values in each.
  for (const JsonMember& member : a.members) {
    const auto other = std::ranges::lower_bound(b.members, member.text, {}, &JsonMember::text);
    if (other == b.members.end() || other->text != member.text) continue;
    if (!member.is_required || !other->is_required) continue;
    bool is_fixed = true;
    for (const int32_t node : {member.node, other->node}) {
      for (const int32_t form : grammar_.node(node).forms) {
        is_fixed &= grammar_.form(form).kind == Kind::kLiterals;
      }
    }
    if (is_fixed && Exclude(member.node, other->node)) return true;
  }
  return false;
}

}  // namespace k3
