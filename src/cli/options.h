// The two lists of settings that commands share: the engine's and the sampler's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/settings.h"
#include "quire/session.h"

namespace quire::cli {

inline constexpr const char* kEngineGroup = "Engine";  // their heading in --help

// Every engine option of cli.md and --explain, stored through the pointers, which outlive the settings.
void add_engine_settings(Settings& settings, Options* options, bool* explain);
// Of these only the named ones: a command offers no option that it would ignore.
void add_engine_settings(Settings& settings, Options* options, std::span<const std::string_view> only);

// What a user said about sampling; unsaid values come from the model's generation_config.json.
struct SamplingFlags {
  std::int32_t max_tokens = 0;
  Sampling sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};
void add_sampling_settings(Settings& settings, SamplingFlags* flags);

// flags > environment > file > the model's defaults (used when do_sample is true) > greedy.
Sampling effective_sampling(const Settings& settings, const SamplingFlags& flags,
                            const GenerationDefaults& defaults);

}  // namespace quire::cli
