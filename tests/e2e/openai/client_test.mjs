// Talks to a running `k3 serve models/nano` with OpenAI's own client, as its users do:
//   node client_test.mjs http://127.0.0.1:8080
// The client is taken from NODE_MODULES, where `npm ci` put it.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_MODULES + "/");
const { OpenAI, BadRequestError } = require("openai");

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const sum = { model: "nano", messages: [{ role: "user", content: "What is 347 + 85?" }] };
const colour = {
  type: "function",
  function: {
    name: "get_colour",
    description: "The colour of a thing.",
    parameters: {
      type: "object",
      properties: { thing: { type: "string" } },
      required: ["thing"],
    },
  },
};

const metres = {
  type: "function",
  function: {
    name: "to_metres",
    description: "A length in metres",
    parameters: {
      type: "object",
      properties: { value: { type: "number" }, unit: { type: "string" } },
      required: ["value", "unit"],
    },
  },
};

const cases = {
  async models() {
    const models = await client.models.list();
    assert.deepEqual(models.data.map((m) => m.id), ["nano"]);
    assert.equal((await client.models.retrieve("nano")).id, "nano");
  },

  async chat() {
    const answer = await client.chat.completions.create(sum);
    assert.equal(answer.object, "chat.completion");
    const { message, finish_reason } = answer.choices[0];
    assert.equal(message.role, "assistant");
    assert.equal(message.content, "432");
    assert.match(message.reasoning_content, /So 432\./);
    assert.equal(finish_reason, "stop");
    assert.equal(answer.usage.total_tokens,
                 answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async thinkingOff() {
    const answer = await client.chat.completions.create({ ...sum, reasoning_effort: "none" });
    assert.equal(answer.choices[0].message.reasoning_content, undefined);
  },

  async streaming() {
    const whole = await client.chat.completions.create(sum);
    const stream = await client.chat.completions.create({
      ...sum, stream: true, stream_options: { include_usage: true },
    });
    let content = "", reasoning = "", finish, usage;
    for await (const chunk of stream) {
      assert.equal(chunk.object, "chat.completion.chunk");
      usage = chunk.usage ?? usage;
      for (const { delta, finish_reason } of chunk.choices) {
        content += delta.content ?? "";
        reasoning += delta.reasoning_content ?? "";
        finish = finish_reason ?? finish;
      }
    }
    assert.equal(content, whole.choices[0].message.content);
    assert.equal(reasoning, whole.choices[0].message.reasoning_content);
    assert.equal(finish, "stop");
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },

  async abort() {
    const stream = await client.chat.completions.create({
      model: "nano", stream: true, max_tokens: 2000, temperature: 1.5, seed: 3,
      messages: [{ role: "user", content: "Tell me about the sea." }],
    });
    for await (const _ of stream) break;
    stream.controller.abort();
    assert.equal((await client.chat.completions.create(sum)).choices[0].message.content, "432");
  },

  async logprobs() {
    const answer = await client.chat.completions.create({ ...sum, logprobs: true, top_logprobs: 3 });
    const tokens = answer.choices[0].logprobs.content;
    assert.equal(tokens.map((t) => t.token).join(""), "432");
    for (const token of tokens) {
      assert.ok(token.logprob <= 0);
      assert.equal(token.top_logprobs.length, 3);
      assert.deepEqual(Buffer.from(token.bytes).toString(), token.token);
    }
  },

  async choicesAndSeeds() {
    const request = {
      model: "nano", n: 3, seed: 11, temperature: 1.2, max_tokens: 20, reasoning_effort: "none",
      messages: [{ role: "user", content: "Tell me about the sea." }],
    };
    const first = await client.chat.completions.create(request);
    const second = await client.chat.completions.create(request);
    const texts = (answer) => answer.choices.map((c) => JSON.stringify(c.message));
    assert.equal(first.choices.length, 3);
    assert.ok(new Set(texts(first)).size > 1);
    const ids = /call_[A-Za-z0-9]{24}/g;  // made for each response
    assert.deepEqual(texts(first).map((t) => t.replace(ids, "")),
                     texts(second).map((t) => t.replace(ids, "")));
  },

  async tools() {
    // A conversation of the model's own kind, with auto: it calls the right tool by itself.
    const messages = [{ role: "user", content: "71.9 inches in metres?" }];
    const request = { model: "nano", messages, tools: [metres, colour] };
    const first = await client.chat.completions.create(request);
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    const call = first.choices[0].message.tool_calls[0];
    assert.equal(call.type, "function");
    assert.equal(call.function.name, "to_metres");
    assert.deepEqual(JSON.parse(call.function.arguments), { value: 71.9, unit: "inch" });
    // The answer goes back with a result, and the conversation goes on.
    const second = await client.chat.completions.create({
      ...request,
      messages: [...messages, first.choices[0].message,
                 { role: "tool", tool_call_id: call.id, content: '{"metres": 1.82626}' }],
    });
    assert.equal(second.choices[0].finish_reason, "stop");
    assert.equal(second.choices[0].message.content, "71.9 inches are 1.82626 metres.");
  },

  async requiredTools() {
    const answer = await client.chat.completions.create({
      model: "nano", tools: [colour], tool_choice: "required",
      messages: [{ role: "user", content: "What colour is the lamp?" }],
    });
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    for (const call of answer.choices[0].message.tool_calls) {
      assert.equal(call.function.name, "get_colour");
      assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["thing"]);
    }
  },

  async noTools() {
    const answer = await client.chat.completions.create({
      model: "nano", tools: [metres], tool_choice: "none", max_tokens: 200,
      messages: [{ role: "user", content: "71.9 inches in metres?" }],
    });
    assert.equal(answer.choices[0].message.tool_calls, undefined);
  },

  async streamedToolCalls() {
    const request = {
      model: "nano", tools: [colour], seed: 1,
      tool_choice: { type: "function", function: { name: "get_colour" } },
      messages: [{ role: "user", content: "What colour is the boat?" }],
    };
    const whole = await client.chat.completions.create(request);
    const stream = await client.chat.completions.create({ ...request, stream: true });
    const calls = [];
    for await (const chunk of stream) {
      for (const part of chunk.choices[0]?.delta.tool_calls ?? []) {
        calls[part.index] ??= { name: "", arguments: "" };
        calls[part.index].name += part.function.name ?? "";
        calls[part.index].arguments += part.function.arguments ?? "";
      }
    }
    assert.deepEqual(calls, whole.choices[0].message.tool_calls.map(
      (c) => ({ name: c.function.name, arguments: c.function.arguments })));
  },

  async structuredOutput() {
    const schema = {
      type: "object",
      properties: {
        answer: { type: "integer" },
        sure: { type: "boolean" },
        kind: { enum: ["sum", "difference"] },
      },
      required: ["answer", "sure", "kind"],
      additionalProperties: false,
    };
    const answer = await client.chat.completions.create({
      ...sum, max_tokens: 400,
      response_format: { type: "json_schema", json_schema: { name: "sum", schema, strict: true } },
    });
    const value = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(value).sort(), ["answer", "kind", "sure"]);
    assert.ok(Number.isInteger(value.answer));
    assert.equal(typeof value.sure, "boolean");
    assert.ok(["sum", "difference"].includes(value.kind));
  },

  async anyObject() {
    const answer = await client.chat.completions.create({
      ...sum, max_tokens: 3000, seed: 5, response_format: { type: "json_object" },
    });
    if (answer.choices[0].finish_reason === "stop") {
      assert.equal(typeof JSON.parse(answer.choices[0].message.content), "object");
    }
  },

  async stopStrings() {
    const answer = await client.chat.completions.create({
      model: "nano", stop: ["moon"],
      messages: [{ role: "user", content: "Repeat these words: river apple moon sun" }],
    });
    assert.equal(answer.choices[0].message.content, "river apple ");
    assert.equal(answer.choices[0].finish_reason, "stop");
  },

  async completions() {
    const answer = await client.completions.create({
      model: "nano", prompt: "And the LORD said unto", max_tokens: 12, seed: 2, logprobs: 2,
    });
    assert.equal(answer.object, "text_completion");
    assert.equal(answer.usage.completion_tokens, 12);
    assert.equal(answer.choices[0].logprobs.tokens.join(""), answer.choices[0].text);
  },

  async refusals() {
    const refused = async (fields, param) => {
      await assert.rejects(client.chat.completions.create({ ...sum, ...fields }), (error) => {
        assert.ok(error instanceof BadRequestError, String(error));
        assert.equal(error.type, "invalid_request_error");
        assert.equal(error.param, param);
        return true;
      });
    };
    await refused({ audio: { voice: "alto", format: "wav" } }, "audio");
    await refused({ top_p: 3 }, "top_p");
    await refused({ reasoning_effort: "medium" }, "reasoning_effort");
    await refused({ made_up: 1 }, "made_up");
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log("ok " + name);
  } catch (error) {
    ++failed;
    console.log("FAILED " + name + "\n" + (error.stack ?? error));
  }
}
process.exit(failed === 0 ? 0 : 1);
