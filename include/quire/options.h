// Options: what the user asked of an engine, before anything is decided. Defaults are "let Quire choose";
// a value set here is kept or refused, never changed. resolve() turns it into what will run, with reasons.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quire {

struct Options {
  std::string device = "cpu";     // cpu | cuda[:N]
  std::string attention_backend;  // a row of `quire backends`; empty: free
  std::string prefill_attention_backend;
  std::string decode_attention_backend;
  std::vector<std::pair<std::string, std::string>> attention;  // CALL=NAME, e.g. {"full.decode", "reference"}
  std::int32_t page_size = 0;                                  // tokens, 1..256; 0: auto
  std::string page_order;            // page_first | layer_first; empty: the platform's default
  std::string dtype = "auto";        // compute type: auto | f32 (a CPU) | bf16 (a GPU); f16: refused so far
  std::string kv_dtype = "auto";     // auto (bf16) | f32 | bf16 | f16 | fp8_e4m3
  std::int64_t kv_memory_bytes = 0;  // 0: auto
  float kv_scale = 0.0f;             // fp8 KV: one scale for all; 0: per token and head
  std::int32_t max_running = 0;      // sequences decoding together; 0: auto
  std::int32_t max_context = 0;      // tokens of prompt and output; 0: the model's
  std::int32_t chunk_tokens = 0;     // most prompt tokens of one step; 0: auto
  std::string prefix_cache;          // on | off; empty: on
  std::string cache_eviction;        // lru | lfu | fifo | priority; empty: lru
  std::string schedule;              // fcfs | longest_prefix | priority; empty: fcfs
  std::int32_t max_waiting = 0;      // requests in the queue; 0: auto
  float target_itl_ms = 0.0f;  // prompt chunks shrink so that running answers get a token in time; 0: off
  std::string deterministic;   // none | run_to_run | batch_invariant | schedule_invariant
  std::int32_t threads = 0;    // compute threads; 0: the cores we may use
  std::string load_format = "auto";  // auto | dummy
  bool graphs = true;                // replay recorded decode steps
  bool overlap = true;               // plan step n + 1 while step n runs
  std::string record;                // folder for a record of steps; empty: none. Holds prompts and answers
  std::int64_t record_limit_bytes = 0;  // 0: auto
  std::string record_layers;            // whose q, results and KV: all | none | 0,3-5; empty: all
  std::string record_steps;             // all | 0,3-5 | 100-; empty: all
  std::string shadow;                   // BACKEND:FRACTION: a second row on a fraction of the steps
};

}  // namespace quire
