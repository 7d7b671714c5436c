// Asks a server by the official npm SDKs and prints what they made of it, one JSON object. It must not judge.
//   node npm_sdks.mjs URL
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const model = "any-name";
const messages = [{ role: "user", content: "Who are you? Answer in one sentence." }];
const name = "get_weather";
const description = "The weather in a city";
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const found = {};

const chat = { model, messages, temperature: 0, max_tokens: 24 };
found.chat = await openai.chat.completions.create(chat);
found.chatChunks = [];
const chunks = await openai.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
for await (const chunk of chunks) found.chatChunks.push(chunk);
const chatStream = openai.chat.completions.stream(chat);
found.chatAccumulated = await chatStream.finalChatCompletion();
found.chatTool = await openai.chat.completions
    .stream({
        model,
        messages: weather,
        temperature: 0,
        max_tokens: 96,
        tools: [{ type: "function", function: { name, description, parameters: schema } }],
        tool_choice: "required",
    })
    .finalChatCompletion();
found.completion = await openai.completions.create({ model, prompt: "def add(a, b):", temperature: 0, max_tokens: 8 });
found.models = (await openai.models.list()).data;

const asked = { model, input: "Who are you? Answer in one sentence.", temperature: 0, max_output_tokens: 24 };
found.response = await openai.responses.create(asked);
const responses = openai.responses.stream(asked);
found.responseEvents = [];
for await (const event of responses) found.responseEvents.push(event.type);
found.responseAccumulated = await responses.finalResponse();

const message = { model, messages, temperature: 0, max_tokens: 24 };
found.message = await anthropic.messages.create(message);
const stream = anthropic.messages.stream(message);
found.messageEvents = [];
for await (const event of stream) found.messageEvents.push(event.type);
found.messageAccumulated = await stream.finalMessage();
found.messageTool = await anthropic.messages
    .stream({
        model,
        messages: weather,
        temperature: 0,
        max_tokens: 96,
        tools: [{ name, description, input_schema: schema }],
        tool_choice: { type: "any" },
    })
    .finalMessage();
found.counted = await anthropic.messages.countTokens({ model, messages });

found.refusals = [];
for (const ask of [
    () => openai.chat.completions.create({ ...chat, temperature: 99 }),
    () => anthropic.messages.create({ ...message, max_tokens: -1 }),
    () => openai.responses.create({ ...asked, conversation: "conv_1" }),
]) {
    try {
        await ask();
        found.refusals.push("served");
    } catch (error) {
        found.refusals.push(error.constructor.name);
    }
}
console.log(JSON.stringify(found));
