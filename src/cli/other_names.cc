#include "cli/other_names.h"

#include <algorithm>
#include <array>

namespace quire::cli {

namespace {

struct OtherName {
  std::string_view theirs;
  std::string_view ours;
};

constexpr std::array kOtherNames = {
    OtherName{"--max-model-len", "--max-context"},
    OtherName{"--ctx-size", "--max-context"},
    OtherName{"-c", "--max-context"},
    OtherName{"--max-num-seqs", "--max-running"},
    OtherName{"--parallel", "--max-running"},
    OtherName{"-np", "--max-running"},
    OtherName{"--max-num-batched-tokens", "--chunk-tokens"},
    OtherName{"--batch-size", "--chunk-tokens"},
    OtherName{"-b", "--chunk-tokens"},
    OtherName{"--ubatch-size", "--chunk-tokens"},
    OtherName{"-ub", "--chunk-tokens"},
    OtherName{"--gpu-memory-utilization", "--kv-memory"},
    OtherName{"--kv-cache-memory-bytes", "--kv-memory"},
    OtherName{"--kv-cache-dtype", "--kv-dtype"},
    OtherName{"--cache-type-k", "--kv-dtype"},
    OtherName{"--cache-type-v", "--kv-dtype"},
    OtherName{"-ctk", "--kv-dtype"},
    OtherName{"-ctv", "--kv-dtype"},
    OtherName{"--block-size", "--page-size"},
    OtherName{"--enable-prefix-caching", "--prefix-cache"},
    OtherName{"--no-enable-prefix-caching", "--prefix-cache"},
    OtherName{"--scheduling-policy", "--schedule"},
    OtherName{"--enforce-eager", "--graphs"},
    OtherName{"--n-gpu-layers", "--device"},
    OtherName{"--gpu-layers", "--device"},
    OtherName{"-ngl", "--device"},
    OtherName{"-t", "--threads"},
    OtherName{"--alias", "--served-model-name"},
    OtherName{"-a", "--served-model-name"},
    OtherName{"--api-key", "--api-key-file"},
    OtherName{"--allowed-origins", "--cors"},
    OtherName{"--n-predict", "--max-tokens"},
    OtherName{"--predict", "--max-tokens"},
    OtherName{"-n", "--max-tokens"},
    OtherName{"--temp", "--temperature"},
    OtherName{"--repeat-penalty", "--repetition-penalty"},
    OtherName{"-s", "--seed"},
    OtherName{"-sys", "--system"},
    OtherName{"--system-prompt", "--system"},
    OtherName{"--num-prompts", "--requests"},
    OtherName{"--max-concurrency", "--clients"},
    OtherName{"--request-rate", "--rate"},
    OtherName{"--base-url", "--url"},
    OtherName{"-m", "--model"},
};

}  // namespace

std::string name_here(std::string_view name, std::span<const std::string_view> legal, bool takes_model) {
  if (takes_model && (name == "-m" || name == "--model"))
    return "the model without a flag: a Hugging Face folder or a .gguf file";
  const auto found = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                  [&](const OtherName& o) { return o.theirs == name; });
  if (found == kOtherNames.end()) return "";
  return std::find(legal.begin(), legal.end(), found->ours) == legal.end() ? "" : std::string(found->ours);
}

}  // namespace quire::cli
