// Ten lines that use an installed deepinfer_sim without libtorch: a number format and a config.
#include <iostream>

#include <model/config.h>
#include <platform/formats.h>

int main() {
  using namespace deepinfer;
  const ModelConfig config = load_model_config(DATA_DIR "/golden/data/tiny-fp8");
  std::cout << "0x7B is " << decode(NumericFormat::kE4M3FN, 0x7B) << ", "
            << config.num_hidden_layers << " layers\n";
}
