// Ten lines that use an installed deepinfer_sim with libtorch: one forward of a tiny model.
#include <iostream>

#include <model/transformer.h>
#include <sim/ops/host_ops.h>

int main() {
  using namespace deepinfer;
  install_host_kernels();
  const auto model = TextModel::load(DATA_DIR "/golden/data/tiny-fp8", Numerics::plain());
  const SequencePtr sequence = model->new_sequence(8);
  const at::Tensor logits = model->forward({{sequence.get(), {1, 2, 3}}});
  std::cout << "next token " << greedy_tokens(logits).item<int64_t>() << "\n";
}
