// The entry that libFuzzer calls and that replay_main.cpp calls for each file of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
