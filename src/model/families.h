// The families: one straight-line forward each. Adding one is a file and a line in load.cc.
#pragma once

#include <memory>

#include "base/determinism.h"
#include "model/model.h"
#include "model/weights.h"

namespace quire::model {

std::unique_ptr<Model> make_llama(const ModelSpec& spec, Weights weights);  // mistral, qwen2, qwen3 too
std::unique_ptr<Model> make_gemma3(const ModelSpec& spec, Weights weights);
std::unique_ptr<Model> make_gpt_oss(const ModelSpec& spec, Weights weights);
std::unique_ptr<Model> make_deepseek_v3(const ModelSpec& spec, Weights weights, platform::Device& device,
                                        Determinism level);

}  // namespace quire::model
