#include "model/attend.h"

#include <utility>

#include "base/check.h"

namespace quire::model {
namespace {

// `work` as part of the recording where the call's row can be recorded; by value what it needs later.
template <class F>
void enqueue(const StepContext& context, const BoundCall& bound, F work) {
  if (context.recorder == nullptr || bound.capturable) return work();
  context.recorder->apart(std::move(work));
}

void run_phase(const Step& step, std::size_t call, const attention::StepShape& shape, const GroupSpec& group,
               const attention::Args& args) {
  const BoundCall& bound = step.context.calls[call];
  enqueue(step.context, bound, [&bound, &stream = step.stream(), shape = masked(shape, group), args] {
    bound.backend->run(shape, args, bound.plan, stream);
  });
}

}  // namespace

std::size_t decode_call(int group) { return static_cast<std::size_t>(group) * 2; }
std::size_t extend_call(int group) { return static_cast<std::size_t>(group) * 2 + 1; }

attention::StepShape masked(attention::StepShape shape, const GroupSpec& group) {
  shape.mask = group.mask;
  shape.mask_width = group.window;
  return shape;
}

attention::Args attention_args(const ModelSpec& spec, TensorView q, TensorView out, const KvView& kv,
                               const float* sink) {
  attention::Args args;
  args.q = q.data;
  args.q_row_stride = q.stride[0];
  args.q_head_stride = q.stride[1];
  args.out = out.data;
  args.out_row_stride = out.stride[0];
  args.out_head_stride = out.stride[1];
  args.kv = kv;
  args.scale = static_cast<float>(spec.attention_scale);
  args.softcap = static_cast<float>(spec.attention_softcap);
  args.sink = sink;
  return args;
}

void plan_attention(const StepContext& context, const StepInputs& inputs, const ModelSpec& spec,
                    PlanPhases phases) {
  QUIRE_CHECK(inputs.groups.size() == spec.groups.size(), "inputs={} groups={}", inputs.groups.size(),
              spec.groups.size());
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const GroupInputs& group = inputs.groups[g];
    const auto plan = [&](std::size_t call, const attention::StepShape& shape) {
      const BoundCall& bound = context.calls[call];
      enqueue(context, bound, [&bound, &stream = context.stream, shape = masked(shape, spec.groups[g])] {
        bound.backend->plan(shape, bound.plan, stream);
      });
    };
    if (inputs.decode_q > 0) plan(decode_call(static_cast<int>(g)), group.decode);
    if (phases.extend && inputs.decode_q < inputs.total_q)
      plan(extend_call(static_cast<int>(g)), group.extend);
  }
}

void attend_decode(const Step& step, int group, TensorView q, TensorView out, const KvView& kv,
                   const float* sink) {
  const std::int64_t rows = step.inputs.decode_q;
  if (rows == 0) return;
  const auto args = attention_args(step.spec, q.rows_slice(0, rows), out.rows_slice(0, rows), kv, sink);
  run_phase(step, decode_call(group), step.inputs.groups[group].decode, step.spec.groups[group], args);
}

void attend_extend(const Step& step, int group, TensorView q, TensorView out, const KvView& kv,
                   const float* sink) {
  const std::int64_t begin = step.inputs.decode_q;
  const std::int64_t rows = step.rows() - begin;
  if (rows == 0) return;
  const auto args =
      attention_args(step.spec, q.rows_slice(begin, rows), out.rows_slice(begin, rows), kv, sink);
  run_phase(step, extend_call(group), step.inputs.groups[group].extend, step.spec.groups[group], args);
}

}  // namespace quire::model
