// The smallest program that uses the library: one chat answer, streamed.
// usage: answer MODEL PROMPT
#include <quire/session.h>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: answer MODEL PROMPT\n");
    return 2;
  }
  const quire::Result<std::unique_ptr<quire::Session>> opened =
      quire::Session::open(argv[1], quire::Options{});
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    return static_cast<int>(opened.error().code);
  }
  quire::Session& session = **opened;

  quire::TextRequest request;
  request.messages = {{"user", argv[2]}};
  request.max_tokens = 64;
  const quire::Result<quire::RequestId> id = session.submit(request);
  if (!id.ok()) {
    std::fprintf(stderr, "%s\n", id.error().message.c_str());
    return static_cast<int>(id.error().code);
  }
  std::vector<quire::TextOutput> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = session.step(outputs);
    for (const quire::TextOutput& output : outputs) std::fputs(output.text.c_str(), stdout);
    std::fflush(stdout);
  }
  std::putchar('\n');
  return 0;
}
