#pragma once
// The fixed English bodies of internal system messages. Models were trained on these bytes.
// Source: the encoder of the K3 release; tests/golden/xtml/constants.json.

#include <string_view>

namespace k3::xtml {

inline constexpr std::string_view kToolsHeader =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
inline constexpr std::string_view kMoreToolsHeader =
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n```json\n";
inline constexpr std::string_view kToolsFooter = "\n```";
inline constexpr std::string_view kEffortBeforeValue =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=";
inline constexpr std::string_view kEffortAfterValue = "`.";
inline constexpr std::string_view kToolChoiceRequired =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
inline constexpr std::string_view kToolChoiceNone =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
inline constexpr std::string_view kJsonObject =
    "The system is invoked with `response_format=json_object`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
inline constexpr std::string_view kJsonSchemaHeader =
    "The system is invoked with `response_format=json_schema`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.\n"
    "The JSON data must match the following schema:\n```json\n";
inline constexpr std::string_view kJsonSchemaFooter = "\n```";

}  // namespace k3::xtml
