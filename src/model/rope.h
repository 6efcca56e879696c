// RopeSpec: a rotary embedding as a checkpoint describes it, and the table that follows from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::model {

enum class RopeKind : std::uint8_t { plain, linear, llama3, yarn };
std::string_view to_string(RopeKind kind);

struct RopeSpec {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  std::int32_t rotary_dim = 0;      // even; dims of a head (or of the rope part of a latent) that turn
  bool interleaved = false;         // pairs (2i, 2i + 1); otherwise (i, i + rotary_dim / 2)
  double factor = 1.0;              // linear, llama3, yarn
  double low_freq_factor = 1.0;     // llama3
  double high_freq_factor = 4.0;    // llama3
  std::int64_t original_max = 0;    // llama3, yarn: positions the model was first trained for
  double beta_fast = 32.0;          // yarn
  double beta_slow = 1.0;           // yarn
  bool truncate = true;             // yarn: borders rounded to whole dims
  double cos_sin_factor = 1.0;      // both cos and sin are multiplied by it (yarn's attention factor)
  std::vector<float> freq_factors;  // GGUF rope_freqs.weight: frequency i is divided by entry i; or empty
};
std::string to_string(const RopeSpec& rope);

// Angle of pair i at position p = p * inv_freq[i]. rotary_dim / 2 values, in double.
std::vector<double> rope_inv_freq(const RopeSpec& rope);

// 0.1 * mscale * ln(factor) + 1 for factor > 1, else 1: yarn's attention temperature.
double yarn_mscale(double factor, double mscale);

}  // namespace quire::model
