// Views of rows of fp32 or bf16 numbers in memory that somebody else owns.
#pragma once

#include <cstdint>

namespace deepinfer {

enum class ElementType {
  kFp32,
  kBf16,  // carried in uint16_t
};

// [rows, columns], a row's elements side by side. row_stride counts elements.
struct RowView {
  ElementType type = ElementType::kFp32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;

  template <typename T>
  const T* row(int64_t index) const {
    return static_cast<const T*>(data) + index * row_stride;
  }
};

// The same, to be written.
struct MutableRowView {
  ElementType type = ElementType::kFp32;
  void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;

  template <typename T>
  T* row(int64_t index) const {
    return static_cast<T*>(data) + index * row_stride;
  }
  operator RowView() const { return {type, data, rows, columns, row_stride}; }
};

// Rows that follow each other without a gap.
inline RowView view(const float* data, int64_t rows, int64_t columns) {
  return {ElementType::kFp32, data, rows, columns, columns};
}
inline RowView view(const uint16_t* data, int64_t rows, int64_t columns) {
  return {ElementType::kBf16, data, rows, columns, columns};
}
inline MutableRowView view(float* data, int64_t rows, int64_t columns) {
  return {ElementType::kFp32, data, rows, columns, columns};
}
inline MutableRowView view(uint16_t* data, int64_t rows, int64_t columns) {
  return {ElementType::kBf16, data, rows, columns, columns};
}

}  // namespace deepinfer
