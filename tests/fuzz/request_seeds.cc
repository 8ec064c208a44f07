// Writes the seed corpus of request_fuzzer into a folder: request_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: request_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  // The first character says what is asked: '0' a chat, '1' tokens, '2' a text, '3' a template, '4' a completion.
  constexpr const char* kBodies[] = {
      R"(0{"messages":[{"role":"user","content":"ab cd"}],"max_tokens":2,"logprobs":true,"top_logprobs":2})",
      R"(0{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stop":["d"],"stream":true})",
      R"(1{"prompt":"ab cd","with_pieces":true})",
      R"(1{"content":"ab","add_special_tokens":false,"return_token_strs":true})",
      R"(2{"tokens":[3,4,5,200]})",
      R"(3{"messages":[{"role":"user","content":"ab"}]})",
      R"(4{"prompt":"ab cd","max_tokens":3,"temperature":0,"seed":1,"n":2,"stop":"d","echo":true,"logprobs":2})",
      R"(4{"prompt":["ab","cd"],"stream":true,"stream_options":{"include_usage":true},"min_tokens":1})",
      R"(4{"prompt":[3,4,5],"top_p":0.5,"top_k":3,"min_p":0.1,"logit_bias":{"3":5},"presence_penalty":1})",
      R"(4{"prompt":[[3,4],[5]],"frequency_penalty":1,"repetition_penalty":1.1,"ignore_eos":true,"model":"a"})",
      R"(4{"prompt":[3,4,5],"attention":{"policy":"tidal","budget":8,"lossless":2,"reuse":"exact"}})",
      R"(4{"prompt":[3,4,5],"attention":{"policy":"quest","budget":"50%","audit":1,"correct":2,"watch":true}})",
      R"(4{"prompt":"a","attention":{"policy":"tidal","opt":{"sink":2,"local":4},"min_ctx":2,"profile":"none"}})",
      R"(4{"prompt":"a","cache_salt":"b","attention":{"budget":"p=0.9","reuse":"any"},"user":"c","tools":[]})",
      R"(4{"prompt":"a","grammar":"root ::= [a-z]{1,4}","temperature":2})",
      R"(4{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"integer"}}}})",
      R"(0{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]})"};
  for (std::size_t i = 0; i < std::size(kBodies); ++i) {
    std::ofstream(folder / std::to_string(i), std::ios::binary) << kBodies[i];
  }
  return 0;
}
