#include "simulate/shrink.h"

#include <algorithm>
#include <numeric>

namespace quire::simulate {
namespace {

class Shrinker {
 public:
  Shrinker(const Fails& fails, int max_trials) : fails_(fails), left_(max_trials), max_trials_(max_trials) {}

  // Leaves out chunks of requests while the rest fails.
  Trace leave_out(Trace trace) {
    for (std::size_t parts = 2; trace.requests.size() >= 2 && left_ > 0;) {
      const std::size_t size = trace.requests.size();
      const std::size_t chunk = (size + parts - 1) / parts;
      bool smaller = false;
      for (std::size_t begin = 0; begin < size && !smaller; begin += chunk) {
        std::vector<std::size_t> rest(size);
        std::iota(rest.begin(), rest.end(), 0);
        const auto at = rest.begin() + static_cast<std::ptrdiff_t>(begin);
        rest.erase(at, at + static_cast<std::ptrdiff_t>(std::min(chunk, size - begin)));
        if (rest.empty()) continue;
        smaller = keep_if_fails(trace, subset(trace, rest));
      }
      if (smaller) {
        parts = std::max<std::size_t>(2, parts - 1);
      } else if (chunk == 1) {
        break;
      } else {
        parts = std::min(size, 2 * parts);
      }
    }
    return trace;
  }

  // Makes each request plainer, one change at a time.
  Trace simplify(Trace trace) {
    for (std::size_t i = 0; i < trace.requests.size() && left_ > 0; ++i) {
      change(trace, i, [](TraceRequest& request) { request.faults = {}; });
      change(trace, i, [](TraceRequest& request) { request.arrival_s = 0.0; });
      const auto halve = [](TraceRequest& request) {
        request.output_tokens = (request.output_tokens + 1) / 2;
        request.max_tokens = request.output_tokens;
      };
      while (change(trace, i, halve)) continue;
    }
    return trace;
  }

  int trials() const { return max_trials_ - left_; }

 private:
  bool keep_if_fails(Trace& trace, Trace candidate) {
    if (left_ <= 0) return false;
    --left_;
    if (!fails_(candidate)) return false;
    trace = std::move(candidate);
    return true;
  }
  template <class Change>
  bool change(Trace& trace, std::size_t index, Change change) {
    Trace candidate = trace;
    TraceRequest& request = candidate.requests[index];
    const TraceRequest before = request;
    change(request);
    const bool same = request.faults == before.faults && request.arrival_s == before.arrival_s &&
                      request.output_tokens == before.output_tokens &&
                      request.max_tokens == before.max_tokens;
    if (same) return false;
    sort_by_arrival(candidate);
    return keep_if_fails(trace, std::move(candidate));
  }

  const Fails& fails_;
  int left_ = 0;
  int max_trials_ = 0;
};

}  // namespace

Trace subset(const Trace& trace, const std::vector<std::size_t>& indices) {
  Trace result;
  result.literal_ids = trace.literal_ids;
  for (const std::size_t index : indices) {
    const TraceRequest& request = trace.requests[index];
    add_request(result, request, trace.prompt(request));
  }
  return result;
}

Shrunk shrink(const Trace& trace, const Fails& fails, int max_trials) {
  Shrinker shrinker(fails, max_trials);
  Shrunk result;
  result.trace = shrinker.simplify(shrinker.leave_out(trace));
  result.trials = shrinker.trials();
  return result;
}

}  // namespace quire::simulate
