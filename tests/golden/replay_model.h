// A text model that knows the answers: it replays golden prompts, changed where a test wants it.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "golden/golden_file.h"
#include "model/transformer.h"
#include "platform/errors.h"

namespace deepinfer {

class ReplayModel final : public TextModel {
 public:
  ReplayModel(const std::string& folder, const std::string& golden_name, const Numerics& numerics)
      : config_(load_model_config(folder)),
        plan_(make_model_plan(config_)),
        numerics_(numerics),
        golden_(GoldenFile::read(folder + "/" + golden_name, config_, plan_)) {}

  // Changes the logits of generated token `step`.
  std::function<void(const std::string& prompt, int64_t step, at::Tensor& logits)> change_logits;
  // Changes a value on its way to the observer. `position` is that of the first row.
  std::function<void(std::string_view name, int64_t layer, int64_t position, at::Tensor& value)>
      change_value;
  // True: the value does not reach the observer.
  std::function<bool(std::string_view name, int64_t layer)> hide_value;
  std::vector<Path> covers;  // counted once a forward

  // What the model was asked to do since the last new_sequence.
  mutable std::vector<std::vector<int64_t>> forwards;
  // What layer_input left in place of zeros: [layer] of the last forward.
  mutable std::vector<at::Tensor> streams_seen;
  mutable std::vector<at::Tensor> pre_seen;

  const GoldenFile& golden() const { return golden_; }
  const GoldenPrompt& prompt(const std::string& name) const {
    for (const GoldenPrompt& prompt : golden_.prompts) {
      if (prompt.name == name) return prompt;
    }
    DEEPINFER_ASSERT(false, name);
  }

  const ModelConfig& config() const override { return config_; }
  const ModelPlan& plan() const override { return plan_; }
  const Numerics& numerics() const override { return numerics_; }

  std::shared_ptr<const TextModel> on_rank(std::shared_ptr<const Mesh>, Communicator&,
                                           Replicas&) const override {
    DEEPINFER_ASSERT(false, "a replay has no ranks");
  }
  void check(const std::vector<Chunk>&) const override {}

  SequencePtr new_sequence(int64_t max_tokens) const override {
    max_tokens_ = max_tokens;
    history_.clear();
    forwards.clear();
    prompt_ = nullptr;
    return nullptr;
  }

  at::Tensor forward(const std::vector<Chunk>& batch,
                     const ForwardOptions& options) const override {
    DEEPINFER_ASSERT(batch.size() == 1, batch.size());
    const std::vector<int64_t>& tokens = batch[0].tokens;
    if (prompt_ == nullptr) find_prompt(tokens);
    const auto position = static_cast<int64_t>(history_.size());
    history_.insert(history_.end(), tokens.begin(), tokens.end());
    forwards.push_back(tokens);
    DEEPINFER_ASSERT(static_cast<int64_t>(history_.size()) <= max_tokens_, max_tokens_);
    for (size_t i = 0; i < history_.size(); ++i) {
      const int64_t expected = i < prompt_->tokens.size()
                                   ? prompt_->tokens[i]
                                   : prompt_->generated[i - prompt_->tokens.size()];
      DEEPINFER_ASSERT(history_[i] == expected, "not teacher-forced at " << i);
    }
    if (options.coverage != nullptr) {
      for (const Path path : covers) options.coverage->add(path);
    }
    if (options.observer != nullptr) observe(*options.observer, position, tokens.size());
    const int64_t step = static_cast<int64_t>(history_.size() - prompt_->tokens.size());
    if (step < 0) return at::zeros({1, config_.vocab_size});
    at::Tensor logits = prompt_->logits.narrow(0, step, 1).clone();
    if (change_logits) change_logits(prompt_->name, step, logits);
    return logits;
  }

 private:
  void find_prompt(const std::vector<int64_t>& tokens) const {
    for (const GoldenPrompt& prompt : golden_.prompts) {
      // By its start, and by the room asked for where prompts start alike.
      const auto room = max_tokens_ - static_cast<int64_t>(prompt.tokens.size());
      const bool fits = room == 1 || room == static_cast<int64_t>(prompt.generated.size());
      if (fits && tokens.size() <= prompt.tokens.size() &&
          std::equal(tokens.begin(), tokens.end(), prompt.tokens.begin())) {
        prompt_ = &prompt;
        return;
      }
    }
    DEEPINFER_ASSERT(false, "no such prompt");
  }

  void observe(Observer& observer, int64_t position, size_t count) const {
    const auto rows = static_cast<int64_t>(count);
    const bool decoding = position >= static_cast<int64_t>(prompt_->tokens.size());
    const GoldenTrace& trace = decoding ? prompt_->decode0 : prompt_->prefill;
    const int64_t first_row = decoding ? 0 : position;
    const auto type =
        numerics_.activation == ActivationDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
    streams_seen.clear();
    pre_seen.clear();
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      at::Tensor streams = at::zeros({rows, config_.hc_mult, config_.hidden_size}, type);
      at::Tensor pre = at::zeros({rows, config_.hc_mult});
      observer.layer_input(layer, streams, pre);
      streams_seen.push_back(streams);
      pre_seen.push_back(pre);
    }
    for (const auto& [key, golden] : trace.tensors) {
      if (hide_value && hide_value(key.second, key.first)) continue;
      // Rows that the golden does not hold are zeros here.
      std::vector<int64_t> shape = golden.values.sizes().vec();
      shape[0] = trace.rows;
      at::Tensor all = at::zeros(shape, golden.values.options());
      all.narrow(0, golden.first_row, golden.values.size(0)).copy_(golden.values);
      at::Tensor value = all.narrow(0, first_row, rows).clone();
      if (value.scalar_type() == at::kLong && key.second != "engram_rows")
        value = value.to(at::kInt);
      if (change_value) change_value(key.second, key.first, position, value);
      observer.value(key.second, key.first, value);
    }
  }

  ModelConfig config_;
  ModelPlan plan_;
  Numerics numerics_;
  GoldenFile golden_;
  mutable int64_t max_tokens_ = 0;
  mutable std::vector<int64_t> history_;
  mutable const GoldenPrompt* prompt_ = nullptr;
};

}  // namespace deepinfer
