"""Chat templates in the manners of the model families, written for these tests."""

from __future__ import annotations

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: Trims contents, writes BOS itself, renames the assistant, refuses roles that do not alternate.
TURNS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] + '\n\n' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<|im_start|>' + role + '\n' + (first if loop.first else '') + message['content'] | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>model\n' }}
{%- endif %}
"""

#: Tools as JSON, tool calls, namespace, break, generation tag, reasoning that is cut out of old turns, a switch.
TOOLS = """{%- set ns = namespace(last=-1) %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools <and> "more"\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\n' }}
    {%- endfor %}
    {{- tools | tojson(indent=2) + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.revindex0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}{% generation %}{{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}</call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}{% endgeneration %}{{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content.strip() + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

ALL = {"smollm2": SMOLLM2, "turns": TURNS, "tools": TOOLS}
