// The list of faults that tests can switch on, and the switch.
#include "platform/fault.h"

#if defined(DEEPINFER_SIM_FAULT_INJECTION)

#include <algorithm>

#include "platform/errors.h"

namespace deepinfer {

namespace internal {
std::string_view active_fault;
}

const std::vector<FaultInfo>& fault_list() {
  static const std::vector<FaultInfo> list = {
      {"window_one_longer", "the sliding window holds one row too many"},
      {"window_one_shorter", "the sliding window holds one row too few"},
      {"window_lost_between_chunks", "window rows of earlier forwards are not read"},
      {"lagged_mix_from_own_sublayer", "a sub-layer collapses with its own mix, without the lag"},
      {"mix_matrix_transposed", "expand contracts the mix matrix over its columns"},
      {"post_not_doubled", "post = sigmoid instead of 2 sigmoid"},
      {"sinkhorn_19_iterations", "one Sinkhorn iteration fewer"},
      {"hc_eps_zero", "hc_eps is left out"},
      {"norm_eps_1e-6", "RMSNorm with the usual epsilon"},
      {"sink_missing", "the attention sink is left out"},
      {"sink_scaled", "the sink is scaled like a score"},
      {"sink_in_the_maximum", "the sink takes part in the running maximum"},
      {"rope_pairs_halves", "RoPE pairs channel i with i + R/2"},
      {"rope_on_first_channels", "RoPE turns the first channels of a head"},
      {"inverse_rope_missing", "the attention output is not rotated back"},
      {"yarn_on_ratio0_layers", "window-only layers rotate with the YaRN table"},
      {"plain_rope_on_compressed_layers", "compressed layers rotate with theta 10000, no YaRN"},
      {"yarn_ramp_reversed", "YaRN scales the fast frequencies and keeps the slow ones"},
      {"q_head_norm", "queries are normalised by head, as in V4"},
      {"wo_a_input_quantised", "the input of wo_a is quantised"},
      {"window_row_rotary_tail_unquantised",
       "only the channels without RoPE are quantised, as in V4"},
      {"entry_visible_one_early", "a compressed entry is seen before its group has closed"},
      {"entry_rotated_at_group_end", "a compressed entry rotates at its last token's position"},
      {"pool_softmax_over_channels", "the pooling softmax runs over channels"},
      {"open_group_dropped", "an open group's first token is forgotten between forwards"},
      {"index_key_from_rotated_latent", "index keys are taken after RoPE"},
      {"index_keys_of_last_owner", "queries are scored against the last owner's keys"},
      {"index_relu_missing", "index scores without the ReLU"},
      {"topk_one_fewer", "top-k keeps one entry fewer"},
      {"topk_of_own_layer_missing", "a consumer layer reads no compressed entries"},
      {"ties_to_larger_index", "equal scores choose the larger index"},
      {"candidate_filter_missing", "later index sources search all entries"},
      {"candidate_filter_on_its_source", "the candidate source filters its own top-k"},
      {"newest_candidate_block_not_pinned", "the newest block competes by its score"},
      {"router_sigmoid", "expert scores by sigmoid"},
      {"router_bias_missing", "experts are chosen without the bias"},
      {"router_bias_in_weights", "the bias enters the routing weights"},
      {"routed_scaling_missing", "routing weights are not scaled"},
      {"weight_after_w2", "the routing weight multiplies after w2"},
      {"swiglu_clamp_missing", "expert activations are not clamped"},
      {"gate_and_up_swapped", "w1 and w3 exchange their roles"},
      {"shared_expert_missing", "the shared expert is left out"},
      {"last_expert_dropped", "the least of the chosen experts is not run"},
      {"hash_reads_before_the_start", "look-backs before the start are token 0 instead of pad"},
      {"hash_adds_instead_of_xor", "the n-gram hash adds its terms"},
      {"engram_history_lost", "n-grams do not reach into earlier forwards"},
      {"engram_scale_ignored", "Engram rows are read without their scales"},
      {"engram_gate_sign_lost", "the Engram gate forgets the sign of its dot product"},
      {"scale_tile_transposed", "fp8 weight scales are read transposed"},
      {"nibbles_swapped", "the high nibble is taken as the even channel"},
      {"quantiser_truncates", "quantisers round towards zero"},
      {"quantiser_scale_one_octave_up", "the fp8 activation scale is twice too large"},
      {"one_rank_embeds_differently", "the last rank's embeddings are off by 2^-10", true},
      {"latent_rounded_before_its_sum", "wo_a's partials are rounded before they are summed", true},
      {"own_maximum_for_narrow_probabilities",
       "probabilities are rounded against the rank's own maximum", true},
      {"heads_gathered_backwards", "merged heads are put together in reverse order of ranks", true},
      {"topk_of_ranks_not_merged", "each rank attends the top-k of its own entries", true},
      {"newest_block_pinned_by_own_length", "the pinned candidate block follows the own entries",
       true},
      {"experts_of_last_rank_dropped", "the last expert-parallel rank adds nothing", true},
      {"shared_expert_added_by_every_rank", "the shared expert counts once a rank", true},
  };
  return list;
}

ScopedFault::ScopedFault(std::string_view name) {
  const auto& list = fault_list();
  const auto entry = std::find_if(list.begin(), list.end(),
                                  [name](const FaultInfo& info) { return info.name == name; });
  DEEPINFER_ASSERT(entry != list.end(), "no fault is called " << name);
  DEEPINFER_ASSERT(internal::active_fault.empty(),
                   "fault " << internal::active_fault << " is on already");
  internal::active_fault = entry->name;
}

ScopedFault::~ScopedFault() { internal::active_fault = {}; }

}  // namespace deepinfer

#endif
