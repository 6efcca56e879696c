#include "cli/bench_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "attention/other_names.h"
#include "base/key_values.h"
#include "base/nearest.h"
#include "base/result.h"
#include "base/text.h"
#include "cli/options.h"

namespace quire::cli {

namespace {

constexpr std::array<std::string_view, 7> kKeys = {"heads", "dim", "batch", "ctx", "q", "shared", "prefix"};

bool parse_int(std::string_view text, std::int32_t* value) {
  return parse_number(text, value) && *value >= 1 && *value <= (1 << 24);
}

// "a" or "a/b"; one number stands for both.
bool parse_pair(std::string_view text, std::int32_t* first, std::int32_t* second) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return parse_int(text, first) && parse_int(text, second);
  return parse_int(text.substr(0, slash), first) && parse_int(text.substr(slash + 1), second);
}

Status set_part(std::string_view key, std::string_view value, attention::bench::Shape* shape) {
  bool fine = false;
  if (key == "heads") {
    fine = parse_pair(value, &shape->q_heads, &shape->kv_heads);
  } else if (key == "dim") {
    fine = parse_pair(value, &shape->qk_dim, &shape->v_dim);
  } else if (key == "batch") {
    fine = parse_int(value, &shape->batch);
  } else if (key == "ctx") {
    fine = parse_int(value, &shape->context);
  } else if (key == "q") {
    fine = parse_int(value, &shape->q_len);
  } else if (key == "shared" || key == "prefix") {
    fine = parse_int(value, &shape->shared);
    shape->hinted = key == "prefix";
  } else {
    return bad_input(fmt::format("--shape: unknown part '{}'{}", key, did_you_mean(key, kKeys)));
  }
  return fine ? Status()
              : Status(bad_input(fmt::format(
                    "--shape: {}={} is not a number of 1 or more (or a pair of them)", key, value)));
}

Result<KvFormat> bench_kv_format(const std::string& kv_dtype) {
  static constexpr std::array<std::string_view, 4> kTypes = {"f32", "bf16", "f16", "fp8_e4m3"};
  const std::optional<DType> type = dtype_from_string(kv_dtype == "auto" ? "bf16" : kv_dtype);
  if (!type || std::find(kTypes.begin(), kTypes.end(), to_string(*type)) == kTypes.end()) {
    return bad_input(fmt::format("--kv-dtype {} is no KV type{}", kv_dtype, did_you_mean(kv_dtype, kTypes)));
  }
  KvFormat format;
  format.k_type = format.v_type = *type;
  format.scale = *type == DType::fp8_e4m3 ? KvScaleKind::token_head : KvScaleKind::none;
  return format;
}

Status append_page_sizes(std::string_view text, std::vector<int>* sizes) {
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    std::int32_t size = 0;
    if (!parse_number(part, &size) || size < 1 || size > attention::kMaxPageSize)
      return bad_input(fmt::format("'{}' is not a page size of 1 to {}; give them as 1,16,64", part,
                                   attention::kMaxPageSize));
    sizes->push_back(size);
    if (part.size() == text.size()) return {};
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace

Result<attention::bench::Shape> parse_bench_shape(const std::string& text) {
  attention::bench::Shape shape;
  QUIRE_TRY_STATUS(each_key_value(
      text, "--shape", "key=value, as in batch=8",
      [&](std::string_view key, std::string_view value) { return set_part(key, value, &shape); }));
  if (shape.q_heads % shape.kv_heads != 0) {
    return bad_input(
        fmt::format("--shape: {} query heads are no multiple of {} KV heads", shape.q_heads, shape.kv_heads));
  }
  if (shape.q_len > shape.context)
    return bad_input(fmt::format("--shape: q={} is over ctx={}", shape.q_len, shape.context));
  shape.latent = shape.kv_heads == 1 && shape.qk_dim == 576 && shape.v_dim == 512;
  return shape;
}

std::vector<std::string> default_bench_shapes() {
  return {"heads=32/8,dim=128,batch=1,ctx=8192,q=1", "heads=32/8,dim=128,batch=8,ctx=8192,q=1",
          "heads=9/3,dim=64,batch=1,ctx=4096,q=1", "heads=32/8,dim=128,batch=1,ctx=2048,q=512"};
}

void add_page_sizes(Settings& settings, std::vector<int>* target) {
  const auto shown = [target] { return fmt::format("{}", fmt::join(*target, ",")); };
  settings.add({.name = "page-size",
                .group = kEngineGroup,
                .value_name = "N,...",
                .help = "tokens per KV page, 1..256, one or more; auto is " + shown(),
                .repeats = true,
                .set = [target, standard = *target](const std::string& text) -> Status {
                  if (text == "auto") {
                    *target = standard;
                    return {};
                  }
                  return append_page_sizes(text, target);
                },
                .show = shown,
                .clear = [target] { target->clear(); }});
}

Result<std::vector<attention::bench::CellSpec>> bench_cells(const std::string& backend,
                                                            const std::vector<std::string>& shapes,
                                                            const std::vector<int>& page_sizes,
                                                            const std::string& kv_dtype,
                                                            std::span<const attention::Backend> table) {
  QUIRE_TRY(format, bench_kv_format(kv_dtype));
  std::vector<attention::bench::CellSpec> cells;
  for (const attention::Backend& row : table) {
    if (backend == "all" ? row.name == "reference" : row.name != backend) continue;
    for (const std::string& text : shapes) {
      QUIRE_TRY(shape, parse_bench_shape(text));
      for (const int page : page_sizes) {
        attention::bench::CellSpec cell;
        cell.backend = row.name;
        cell.shape = shape;
        cell.page_size = page;
        cell.kv = format;
        cells.push_back(cell);
      }
    }
  }
  if (cells.empty())
    return bad_input(fmt::format("--backend {}: no such row; `quire backends` lists them{}", backend,
                                 attention::name_elsewhere(backend)));
  return cells;
}

}  // namespace quire::cli
