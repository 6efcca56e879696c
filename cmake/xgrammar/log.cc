// What xgrammar would print goes nowhere (it quotes what clients sent); what it cannot do is an exception.
#include "support/logging.h"

namespace xgrammar {

void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
