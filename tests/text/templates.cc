#include "templates.h"

namespace glimpse::text::testing {
namespace {

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

/// More levels than 16 MiB of stack hold: one takes over a hundred bytes, of many tokens more than 500.
constexpr int kDeep = 200'000;
constexpr int kManyTokens = 60'000;

std::string nested(const std::string& open, const std::string& inside, const std::string& close, int levels = kDeep) {
  return repeated(open, levels) + inside + repeated(close, levels);
}

std::string expression(const std::string& text) {
  return "{{ " + text + " }}";
}

std::string recursive_macro(const std::string& body) {
  return "{% macro m(x) %}" + body + "{% endmacro %}{{ m(messages) }}";
}

/// A value that holds itself, then something that walks it.
std::string cycle(const std::string& walk) {
  return "{% set l = [] %}{% set _ = l.append(l) %}" + walk;
}

/// A list of lists, deep enough that whatever walks it overflows.
std::string deep_value(const std::string& walk) {
  return "{% set ns = namespace(v=[]) %}{% for i in range(40000) %}{% set ns.v = [ns.v] %}{% endfor %}" + walk;
}

void add_endless(std::vector<NamedTemplate>& all) {
  const std::string loop = "{% for i in range(1000000000) %}";
  const std::string doubling = "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(80) %}";
  const std::string list = "{% set l = range(100000) %}";
  const auto add = [&](const char* name, const std::string& source) { all.push_back({name, source}); };
  add("range", "{% for i in range(4611686018427387904) %}{% endfor %}");
  add("range_printed", "{{ range(4611686018427387904) }}");
  add("range_backwards", "{{ range(4611686018427387904, -4611686018427387904, -1) }}");
  add("range_overflow", "{{ range(9223372036854775800, 9223372036854775807, 5) | length }}");
  add("range_length", "{{ range(9000000000) | length }}");
  add("nested_loops", "{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}");
  add("nested_empty_loops", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}");
  add("doubled_by_concat", doubling + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}");
  add("doubled_by_plus", doubling + "{% set ns.s = ns.s + ns.s %}{% endfor %}");
  add("doubled_by_join", doubling + "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}");
  add("doubled_by_replace", doubling + "{% set ns.s = ns.s | replace('a', 'aa') %}{% endfor %}");
  add("doubled_by_format", doubling + "{% set ns.s = '{}{}'.format(ns.s, ns.s) %}{% endfor %}");
  add("doubled_list",
      "{% set ns = namespace(l=[1]) %}{% for i in range(80) %}{% set ns.l = ns.l + ns.l %}{% endfor %}");
  add("doubled_json",
      "{% set ns = namespace(s='\"') %}{% for i in range(80) %}{% set ns.s = ns.s | tojson %}{% endfor %}");
  add("doubled_values",
      "{% set ns = namespace(v=[0]) %}{% for i in range(80) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"
      "{{ ns.v }}");
  add("doubled_escapes", doubling + "{% set ns.s = ns.s | replace('', ns.s) %}{% endfor %}");
  add("repeated", "{{ 'abcdefgh' * 1000000000000 }}");
  add("repeated_empty", "{{ '' * 9000000000000000000 }}");
  add("quadratic_join", list + "{% for i in l %}{{ l | join(',') }}{% endfor %}");
  add("quadratic_concat",
      "{% set ns = namespace(s='') %}{% for i in range(3000000) %}{% set ns.s = ns.s ~ 'ab' %}{% endfor %}");
  add("quadratic_append", list + "{% for i in l %}{% set _ = l.append(l | list) %}{% endfor %}");
  add("quadratic_split", "{{ ('a,' * 4000000).split(',') | length }}");
  add("quadratic_sort", list + "{% for i in l %}{{ l | sort | length }}{% endfor %}");
  add("quadratic_slice", list + "{% for i in l %}{{ l[::-1] | length }}{% endfor %}");
  add("quadratic_in", list + "{% for i in l %}{{ -1 in l }}{% endfor %}");
  add("slice_steps", "{{ 'abc'[0:3:9223372036854775807] }}{{ range(1000000000)[::2] }}");
  add("long_output", loop + "abcdefghijklmnopqrstuvwxyz" + "{% endfor %}");
  add("long_set", "{% set s %}" + loop + "abcdefgh{% endfor %}{% endset %}");
  add("macro_calls", "{% macro a(x) %}{{ x }}{{ x }}{% endmacro %}" + loop +
                         "{{ a(a(a(a(a(a(a(a('xxxxxxxx')))))))) }}"
                         "{% endfor %}");
  add("branching_macro",
      "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}");
  add("wide_indent", "{{ messages | tojson(indent=2000000000) }}");
}

void add_deep_sources(std::vector<NamedTemplate>& all) {
  const auto add = [&](const char* name, std::string (*source)()) { all.push_back({name, source}); };
  add("nots", [] { return expression(repeated("not ", kDeep) + "x"); });
  add("minuses", [] { return expression(repeated("- ", kDeep) + "1"); });
  add("pluses", [] { return expression("1" + repeated("+1", kDeep)); });
  add("concats", [] { return expression("'a'" + repeated("~'a'", kDeep)); });
  add("products", [] { return expression("1" + repeated("*1", kDeep)); });
  add("comparisons", [] { return expression("1" + repeated("<1", kDeep)); });
  add("ands", [] { return expression("1" + repeated(" and 1", kDeep)); });
  add("ors", [] { return expression("0" + repeated(" or 0", kDeep)); });
  add("filters", [] { return expression("x" + repeated("|d", kDeep)); });
  add("called_filters", [] { return expression("x" + repeated("|d(1)", kManyTokens)); });
  add("members", [] { return expression("x" + repeated(".a", kDeep)); });
  add("indices", [] { return expression("x" + repeated("[0]", kManyTokens)); });
  add("slices", [] { return expression("x" + repeated("[0:1]", kManyTokens)); });
  add("calls", [] { return expression("x" + repeated("()", kManyTokens)); });
  add("ternaries", [] { return expression(repeated("1 if 0 else ", kManyTokens) + "1"); });
  add("brackets", [] { return expression(nested("(", "1", ")")); });
  add("open_brackets", [] { return "{{" + repeated("(", kDeep); });
  add("lists", [] { return expression(nested("[", "", "]")); });
  add("objects", [] { return expression(nested("{1:", "1", "}", kManyTokens)); });
  add("arguments", [] { return expression(nested("x(", "", ")", kManyTokens)); });
  add("keyword_arguments", [] { return expression(nested("x(a=", "1", ")", kManyTokens)); });
  add("elifs", [] { return "{% if 0 %}" + repeated("{% elif 0 %}", kManyTokens) + "{% endif %}"; });
  add("ifs", [] { return nested("{% if 1 %}", "", "{% endif %}", kManyTokens); });
  add("elses", [] { return nested("{% if 0 %}{% else %}", "", "{% endif %}", kManyTokens); });
  add("fors", [] { return nested("{% for i in [1] %}", "", "{% endfor %}", kManyTokens); });
  add("sets", [] { return nested("{% set a %}", "", "{% endset %}", kManyTokens); });
  add("filter_blocks", [] { return nested("{% filter upper %}", "", "{% endfilter %}", kManyTokens); });
  add("call_blocks", [] { return nested("{% call m() %}", "", "{% endcall %}", kManyTokens); });
  add("macros", [] { return nested("{% macro m() %}", "", "{% endmacro %}", kManyTokens); });
  add("blocks_with_dashes", [] { return nested("{%-if 1-%}", "", "{%-endif-%}", kManyTokens); });
}

void add_recursions(std::vector<NamedTemplate>& all) {
  const auto add = [&](const char* name, const std::string& source) { all.push_back({name, source}); };
  add("recursive_macro", recursive_macro("{{ m(x) }}"));
  add("recursive_macro_in_loop", recursive_macro("{% for i in [1] %}{{ m(x) }}{% endfor %}"));
  add("recursive_default", "{% macro m(x=m()) %}{% endmacro %}{{ m() }}");
  add("recursive_call_block", recursive_macro("{% call m(x) %}{% endcall %}"));
  add("mutual_macros", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  add("cycle_printed", cycle("{{ l }}"));
  add("cycle_json", cycle("{{ l | tojson }}"));
  add("cycle_string", cycle("{{ l | string }}"));
  add("cycle_in_namespace", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}");
  add("cycle_of_messages", "{% set _ = messages.append(messages) %}{{ messages | tojson }}");
  add("cycle_in_message", "{% set messages[0].content = messages %}{{ messages | tojson }}");
  add("deep_value_printed", deep_value("{{ ns.v }}"));
  add("deep_value_json", deep_value("{{ ns.v | tojson }}"));
  add("deep_value_freed", deep_value("{% set ns.v = 1 %}"));
}

void add_faults(std::vector<NamedTemplate>& all) {
  const auto add = [&](const char* name, const std::string& source) { all.push_back({name, source}); };
  add("divisible_by_zero", "{{ 1 is divisibleby(0) }}");
  add("smallest_by_minus_one", "{{ (-9223372036854775807 - 1) is divisibleby(-1) }}");
  add("emptied_messages",
      "{% for m in messages %}{% set _ = messages.pop() %}{% endfor %}{{ messages[0].content }}"
      "{{ raise_exception('none') }}");
  add("replaced_messages", "{% set _ = messages.pop() %}{% set _ = messages.append(1) %}{{ messages[0].content.x() }}");
  add("grown_messages", "{% for i in range(100000000) %}{% set _ = messages.append(messages[0]) %}{% endfor %}");
}

}  // namespace

std::vector<NamedTemplate> honest_templates() {
  return {
      {"chatml",
       "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
       "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
       "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
      {"llama2",
       "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
       "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
       "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
       "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
       "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
       "{% if loop.index0 == 0 and system_message != false %}"
       "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
       "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
       "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
       "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"},
      {"llama3",
       "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
       "        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n    {%- endif %}\n{%- endif %}\n"
       "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n"
       "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n"
       "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{%- if tools is not none and tools is defined %}"
       "{{- \"Environment: ipython\\n\" }}{%- endif %}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n"
       "{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}\n"
       "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
       "'<|eot_id|>' }}\n    {%- elif message.tool_calls|length != 1 %}\n"
       "        {{- raise_exception(\"one tool-call at once\") }}\n    {%- endif %}\n{%- endfor %}\n"
       "{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif "
       "%}\n"},
      {"qwen3",
       "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
       "{%- endif %}\n{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n"
       "{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n"
       "    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string %}\n"
       "        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}\n    {%- endif %}\n"
       "{%- endfor %}\n{%- for message in messages %}\n    {%- if message.content is string %}"
       "{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}\n"
       "    {%- if message.role == \"user\" or (message.role == \"system\" and not loop.first) %}\n"
       "        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}\n"
       "    {%- elif message.role == \"assistant\" %}\n        {%- set reasoning_content = '' %}\n"
       "        {%- if '</think>' in content %}\n"
       "            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}\n"
       "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n"
       "        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}\n"
       "            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + "
       "'\\n</think>\\n\\n' + content }}\n        {%- else %}\n"
       "            {{- '<|im_start|>' + message.role + '\\n' + content }}\n        {%- endif %}\n"
       "        {{- '<|im_end|>\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
       "    {{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking is defined and enable_thinking is false %}"
       "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}\n{%- endif %}"},
      {"gemma",
       "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] + '\n\n' -%}"
       "{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set loop_messages = messages -%}"
       "{%- endif -%}{%- for message in loop_messages -%}{%- if message['role'] == 'assistant' -%}"
       "{%- set role = 'model' -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}"
       "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{%- if message['content'] is string -%}"
       "{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}"
       "{%- for item in message['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}"
       "{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
       "{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"},
      {"macro",
       "{%- macro turn(message, mark='|') -%}<{{ mark }}{{ message.role | upper }}{{ mark }}>{{ message.content }}"
       "{%- endmacro -%}{%- set turns = [] -%}{%- for m in messages if m.role != 'tool' -%}"
       "{%- set _ = turns.append(turn(m, mark='#')) -%}{%- endfor -%}{{ turns | join('\n') }}"
       "{% filter trim %}  {{ messages | map(attribute='role') | list | tojson }}  {% endfilter %}"
       "{% call turn(messages[0]) %}{% endcall %}{# a comment #}"},
  };
}

std::vector<NamedTemplate> hostile_templates() {
  std::vector<NamedTemplate> all;
  add_endless(all);
  add_deep_sources(all);
  add_recursions(all);
  add_faults(all);
  return all;
}

}  // namespace glimpse::text::testing
