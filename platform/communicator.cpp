#include "platform/communicator.h"

#include <algorithm>
#include <sstream>

#include "platform/errors.h"

namespace deepinfer {

std::string_view wire_type_name(WireType type) {
  switch (type) {
    case WireType::kFloat32:
      return "fp32";
    case WireType::kBFloat16:
      return "bf16";
    case WireType::kInt32:
      return "int32";
    case WireType::kUint8:
      return "uint8";
  }
  DEEPINFER_ASSERT(false, "wire type " << static_cast<int>(type));
}

int64_t wire_type_bytes(WireType type) {
  switch (type) {
    case WireType::kFloat32:
    case WireType::kInt32:
      return 4;
    case WireType::kBFloat16:
      return 2;
    case WireType::kUint8:
      return 1;
  }
  DEEPINFER_ASSERT(false, "wire type " << static_cast<int>(type));
}

std::string_view collective_name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduceSum:
      return "all_reduce(sum)";
    case CollectiveOp::kAllReduceMax:
      return "all_reduce(max)";
    case CollectiveOp::kAllReduceTree:
      return "all_reduce(tree)";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatterSum:
      return "reduce_scatter(sum)";
    case CollectiveOp::kAllToAllV:
      return "all_to_all_v";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kBarrier:
      return "barrier";
    case CollectiveOp::kSend:
      return "send";
    case CollectiveOp::kReceive:
      return "receive";
  }
  DEEPINFER_ASSERT(false, "collective " << static_cast<int>(op));
}

std::string CallSite::text() const {
  const std::string_view path = file;
  const size_t slash = path.rfind('/');
  std::ostringstream text;
  text << path.substr(slash == std::string_view::npos ? 0 : slash + 1) << ':' << line << " ("
       << function << ')';
  return text.str();
}

Shape::Shape(std::span<const int64_t> sizes) : dimensions_(sizes.size()) {
  DEEPINFER_ASSERT(sizes.size() <= kMostDimensions, sizes.size() << " dimensions");
  int64_t room = kMostElements;
  for (const int64_t size : sizes) {
    DEEPINFER_ASSERT(size >= 0 && size <= room, "a size of " << size << ", room for " << room);
    if (size > 0) room /= size;
  }
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
}

int64_t Shape::elements() const {
  int64_t count = 1;
  for (size_t i = 0; i < dimensions_; ++i) count *= sizes_[i];
  return count;
}

std::string Shape::text() const {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < dimensions_; ++i) text << (i > 0 ? ", " : "") << sizes_[i];
  text << ']';
  return text.str();
}

std::string replica_groups_text(const ReplicaGroups& groups) {
  std::ostringstream text;
  text << '[';
  for (size_t g = 0; g < groups.size(); ++g) {
    text << (g > 0 ? ", [" : "[");
    for (size_t i = 0; i < groups[g].size(); ++i) text << (i > 0 ? ", " : "") << groups[g][i];
    text << ']';
  }
  text << ']';
  return text.str();
}

}  // namespace deepinfer
