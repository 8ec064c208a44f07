// Writes the seed corpus of http_fuzzer into a folder: http_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr const char* kKey = "Host: localhost\r\nAuthorization: Bearer key\r\n";

std::string asked(const std::string& line, const std::string& fields = {}, const std::string& body = {}) {
  return line + " HTTP/1.1\r\n" + kKey + fields + "\r\n" + body;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: http_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  int number = 0;
  // Each comes whole, and in 8 parts.
  const auto write = [&](const std::string& bytes) {
    for (const char parts : {'\0', '\7'}) {
      std::ofstream(folder / std::to_string(number++), std::ios::binary) << bytes << parts;
    }
  };
  constexpr const char* kPaths[] = {"/",
                                    "/health",
                                    "/v1/models",
                                    "/v1/models/a%20b",
                                    "/props",
                                    "/tokenizer_info",
                                    "/metrics",
                                    "/v1/requests",
                                    "/v1/requests/cmpl-1/events?bins=64&from=3",
                                    "/v1/requests/cmpl-1/steps/2",
                                    "/microscope.js",
                                    "/nowhere",
                                    "http://localhost/health"};
  for (const std::string path : kPaths) {
    write(asked("GET " + path));
    write(asked("HEAD " + path) + asked("GET /health", "Connection: close\r\n"));
  }
  write(asked("DELETE /v1/requests/cmpl-1", "x-request-id: mine\r\n"));
  write(asked("OPTIONS /v1/completions", "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n"));
  const std::string json = "Content-Type: application/json\r\n";
  for (const std::string path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    write(asked("POST " + path, json + "Content-Length: 2\r\n", "{}") + asked("GET /health"));
    write(asked("POST " + path, json + "Transfer-Encoding: chunked\r\n", "1\r\n{\r\n1;a=b\r\n}\r\n0\r\nA: b\r\n\r\n"));
  }
  write(asked("POST /tokenize", json + "Expect: 100-continue\r\nContent-Length: 4\r\n", "true"));
  write(asked("POST /tokenize", json + "Content-Length: 99999\r\n", "..."));
  write(asked("POST /tokenize", "Content-Type: text/plain\r\nContent-Length: 1\r\n", "1"));
  write("GET /health HTTP/1.0\r\n\r\n");
  write("GET /health HTTP/1.1\r\nHost: model.example:80\r\nOrigin: https://page.example\r\n\r\n");
  write("GET /health HTTP/1.1\r\nHost: [::1]:8080\r\nOrigin: null\r\n\r\n");
  write("GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + std::string(3000, 'a') + "\r\n\r\n");
  return 0;
}
