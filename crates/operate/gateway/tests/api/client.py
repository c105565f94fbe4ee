"""The openai package against a gateway: every call that a program would make, and the exceptions of wrong ones."""

import sys

import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0, timeout=60)
question = [{"role": "user", "content": "the garden é 日本語 🌍"}]


def check(what, found, expected):
    assert found == expected, f"{what}: {found!r} is not {expected!r}"


def raises(kind, code, call):
    try:
        call()
    except kind as error:
        check(f"{kind.__name__} code", error.code, code)
        assert error.body["message"], error.body
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


models = [model.id for model in client.models.list()]
check("models", models, ["parrot", "gpt-4o", "parrot-lora"])
check("one model", client.models.retrieve("parrot").object, "model")

chat = client.chat.completions.create(model="parrot", messages=question, temperature=0, seed=1, max_completion_tokens=50)
check("chat", chat.choices[0].message.content, question[0]["content"])
check("finish", chat.choices[0].finish_reason, "stop")
check("total", chat.usage.total_tokens, chat.usage.prompt_tokens + chat.usage.completion_tokens)

chunks = list(client.chat.completions.create(model="parrot", messages=question, stream=True, stream_options={"include_usage": True}))
check("stream", "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), question[0]["content"])
check("usage of a stream", chunks[-1].usage.completion_tokens, chat.usage.completion_tokens)

with client.chat.completions.stream(model="parrot", messages=question) as stream:
    for _ in stream:
        pass
    check("accumulated stream", stream.get_final_completion().choices[0].message.content, question[0]["content"])

shown = client.chat.completions.create(model="parrot", messages=question, logprobs=True, top_logprobs=3)
check("log-probabilities", len(shown.choices[0].logprobs.content), shown.usage.completion_tokens)
check("likeliest", len(shown.choices[0].logprobs.content[0].top_logprobs), 3)

several = client.chat.completions.create(model="parrot", messages=question, n=3, stop=["garden"])
check("choices", [choice.message.content for choice in several.choices], ["the "] * 3)

completion = client.completions.create(model="parrot", prompt=["a b", "c"], max_tokens=5, logprobs=1)
check("completions", [choice.text for choice in completion.choices], ["a b", "c"])
check("completion tokens", len(completion.choices[1].logprobs.tokens), 1)
pieces = client.completions.create(model="parrot", prompt="the lamp", stream=True)
check("stream of a completion", "".join(chunk.choices[0].text for chunk in pieces), "the lamp")

parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": parameters}}]
asked = [{"role": "user", "content": "Weather in Oslo?"}]
called = client.chat.completions.create(model="parrot", messages=asked, tools=tools)
call = called.choices[0].message.tool_calls[0]
check("call", (call.function.name, call.function.arguments), ("weather", '{"city": "Oslo"}'))
check("finish by a call", called.choices[0].finish_reason, "tool_calls")
answered = asked + [called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
client.chat.completions.create(model="parrot", messages=answered, tools=tools)
forced = client.chat.completions.create(model="parrot", messages=question, tools=tools, tool_choice="required")
check("forced call", forced.choices[0].message.tool_calls[0].function.name, "weather")
with client.chat.completions.stream(model="parrot", messages=asked, tools=tools) as stream:
    for _ in stream:
        pass
    final = stream.get_final_completion().choices[0].message
    check("streamed call", final.tool_calls[0].function.arguments, '{"city": "Oslo"}')

schema = {"name": "person", "strict": True, "schema": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}}
try:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    parsed = client.chat.completions.parse(model="parrot", messages=question, response_format=Person)
    check("parsed", type(parsed.choices[0].message.parsed), Person)
except ImportError:
    pass
client.chat.completions.create(model="parrot", messages=question, response_format={"type": "json_schema", "json_schema": schema})
client.chat.completions.create(model="parrot", messages=question, response_format={"type": "json_object"})

response = client.responses.create(model="parrot", input="the lamp", instructions="Repeat.", max_output_tokens=50)
check("response", (response.output_text, response.status), ("the lamp", "completed"))
check("usage of a response", response.usage.output_tokens, response.usage.total_tokens - response.usage.input_tokens)
short = client.responses.create(model="parrot", input=question, max_output_tokens=1)
check("incomplete", (short.status, short.incomplete_details.reason), ("incomplete", "max_output_tokens"))
flat = [{"type": "function", "name": "weather", "description": "The weather.", "parameters": parameters, "strict": True}]
used = client.responses.create(model="parrot", input=asked, tools=flat)
check("call of a response", (used.output[0].name, used.output[0].arguments), ("weather", '{"city": "Oslo"}'))
back = asked + [used.output[0], {"type": "function_call_output", "call_id": used.output[0].call_id, "output": "rain"}]
client.responses.create(model="parrot", input=back, tools=flat)
with client.responses.stream(model="parrot", input="the garden") as stream:
    pieces = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    check("stream of a response", (pieces, stream.get_final_response().output_text), ("the garden", "the garden"))
with client.responses.stream(model="parrot", input=asked, tools=flat) as stream:
    for _ in stream:
        pass
    check("streamed call of a response", stream.get_final_response().output[0].arguments, '{"city": "Oslo"}')
person = {"type": "json_schema", "name": "person", "schema": schema["schema"], "strict": True}
client.responses.create(model="parrot", input="the lamp", text={"format": person})
raises(openai.BadRequestError, None, lambda: client.responses.create(model="parrot", input="x", previous_response_id="resp_1"))
raises(openai.BadRequestError, "context_length_exceeded", lambda: client.responses.create(model="parrot", input="x", max_output_tokens=99999))

# Asks for base64 and decodes it.
embedding = client.embeddings.create(model="parrot", input=["a", "the garden"])
check("embeddings", [len(entry.embedding) for entry in embedding.data], [4, 4])
check("numbers", list(embedding.data[0].embedding)[:3], [0.5, 0.5, 0.5])

raises(openai.NotFoundError, "model_not_found", lambda: client.chat.completions.create(model="none", messages=question))
raises(openai.BadRequestError, None, lambda: client.chat.completions.create(model="parrot", messages=question, temperature=9))
raises(openai.BadRequestError, "context_length_exceeded", lambda: client.chat.completions.create(model="parrot", messages=question, max_tokens=99999))
wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
raises(openai.AuthenticationError, "invalid_api_key", lambda: wrong.models.list())
print("conforms")
