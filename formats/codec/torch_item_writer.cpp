// The framing of single-tensor items: what TorchArchiveLayout would write for a bare contiguous tensor, without its
// machinery, because a DCP save has one for every piece.
#include <array>
#include <limits>

#include "formats/codec/little_endian.h"
#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/torch_archive.h"
#include "formats/codec/torch_framing.h"
#include "formats/codec/torch_storage_class.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kFrontNames[] = {"archive/data.pkl", "archive/.format_version", "archive/.storage_alignment",
                                            "archive/byteorder"};
constexpr std::string_view kDataName = "archive/data/0", kItemVersionName = "archive/version";
constexpr std::string_view kItemIdName = "archive/.data/serialization_id";

void put_integer(std::string& out, uint64_t v) {
  if (v <= 0xFF) {
    out += static_cast<char>(pickle::kBinInt1);
    out += static_cast<char>(v);
  } else if (v <= 0xFFFF) {
    out += static_cast<char>(pickle::kBinInt2);
    put_u16(out, static_cast<uint16_t>(v));
  } else if (v <= std::numeric_limits<int32_t>::max()) {
    out += static_cast<char>(pickle::kBinInt);
    put_u32(out, static_cast<uint32_t>(v));
  } else {   // two's complement, as short as it goes
    char bytes[9] = {};
    std::memcpy(bytes, &v, 8);
    size_t size = 8;
    while (size > 1 && bytes[size - 1] == 0 && (bytes[size - 2] & 0x80) == 0) --size;
    out += static_cast<char>(pickle::kLong1);
    out += static_cast<char>(size);
    out.append(bytes, size);
  }
}

void put_text(std::string& out, std::string_view text) {
  out += static_cast<char>(pickle::kBinUnicode);
  put_u32(out, static_cast<uint32_t>(text.size()));
  out += text;
}

void put_tuple(std::string& out, Dims dims) {
  if (dims.size() > 3) out += static_cast<char>(pickle::kMark);
  for (const int64_t n : dims) put_integer(out, static_cast<uint64_t>(n));
  out += dims.empty() ? static_cast<char>(pickle::kEmptyTuple)
         : dims.size() > 3 ? static_cast<char>(pickle::kTuple)
                           : static_cast<char>(pickle::kTuple1 + dims.size() - 1);
}

std::string bare_tensor_pickle(DType dtype, Dims shape) {
  const std::string_view typed = typed_storage_name(dtype);
  const uint64_t elements = count(shape);
  std::array<int64_t, 64> strides;
  row_major_strides(shape, strides);
  std::string out;
  out.reserve(256);
  out += typed.empty() ? "\x80\2ctorch._utils\n_rebuild_tensor_v3\n((" : "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((";
  put_text(out, "storage");
  if (typed.empty()) {
    out += "ctorch.storage\nUntypedStorage\n";
  } else {
    out += "ctorch\n";
    out += typed;
    out += '\n';
  }
  put_text(out, "0");
  put_text(out, "cpu");
  put_integer(out, typed.empty() ? elements * item_size(dtype) : elements);
  out += "tQ";
  put_integer(out, 0);   // offset
  put_tuple(out, shape);
  put_tuple(out, Dims(strides).first(shape.size()));
  out += "\x89" "ccollections\nOrderedDict\n)R";
  if (typed.empty()) {
    out += "ctorch\n";
    out += dtype_name(dtype);
    out += '\n';
  }
  out += "tR.";
  return out;
}

struct ItemPlan {
  std::array<ZipHeader, 4> front;
  ZipHeader data, version, id;
  uint64_t directory = 0, end = 0;

  ItemPlan(uint64_t pickle_bytes, uint64_t data_bytes) {
    uint64_t at = 0;
    const auto plan = [&at](std::string_view name, uint64_t bytes) {
      const ZipHeader h = plan_zip_member(at, name.size(), bytes);
      at = h.end_offset;
      return h;
    };
    front[0] = plan(kFrontNames[0], pickle_bytes);
    for (size_t i = 1; i < front.size(); ++i) front[i] = plan(kFrontNames[i], kBeforeStorages[i - 1].content.size());
    data = plan(kDataName, data_bytes);
    version = plan(kItemVersionName, kVersion.size());
    id = plan(kItemIdName, kIdSize);
    directory = at;
    for (size_t i = 0; i < front.size(); ++i) at += zip_central_size(front[i], kFrontNames[i].size());
    at += zip_central_size(data, kDataName.size()) + zip_central_size(version, kItemVersionName.size()) +
          zip_central_size(id, kItemIdName.size());
    end = at + kZipEndSize;
  }
};

SerializationId named_id() {
  SerializationId id;
  for (const std::string_view name : kFrontNames) id.name(name);
  id.name(kDataName);
  return id;
}

uint64_t data_bytes(DType dtype, Dims shape) { return count(shape) * item_size(dtype); }

}  // namespace

TensorItemFrame frame_tensor_item(DType dtype, Dims shape) {
  const ItemPlan plan(bare_tensor_pickle(dtype, shape).size(), data_bytes(dtype, shape));
  return {plan.data.data_offset, plan.data.data_size, plan.end - plan.data.data_offset - plan.data.data_size};
}

void write_tensor_item_prefix(DType dtype, Dims shape, std::string& out) {
  const std::string pickle = bare_tensor_pickle(dtype, shape);
  const uint64_t begin = out.size();
  write_small_member(0, kFrontNames[0], pickle, out);
  for (size_t i = 1; i < std::size(kFrontNames); ++i) {
    write_small_member(out.size() - begin, kFrontNames[i], kBeforeStorages[i - 1].content, out);
  }
  write_zip_local(plan_zip_member(out.size() - begin, kDataName.size(), data_bytes(dtype, shape)), kDataName, out);
}

void write_tensor_item_suffix(DType dtype, Dims shape, uint32_t crc32_of_data, std::string& out) {
  static const std::array<uint32_t, 3> kContentCrcs = {crc32(byte_view(kBeforeStorages[0].content)),
                                                       crc32(byte_view(kBeforeStorages[1].content)),
                                                       crc32(byte_view(kBeforeStorages[2].content))};
  static const uint32_t kVersionCrc = crc32(byte_view(kVersion));
  const std::string pickle = bare_tensor_pickle(dtype, shape);
  const ItemPlan plan(pickle.size(), data_bytes(dtype, shape));
  const uint32_t data_crc = plan.data.data_size == 0 ? 0 : crc32_of_data;
  const std::array<uint32_t, 4> front_crcs = {crc32(byte_view(pickle)), kContentCrcs[0], kContentCrcs[1], kContentCrcs[2]};
  static const SerializationId kNames = named_id();
  SerializationId id = kNames;
  for (const uint32_t crc : front_crcs) id.crc(crc);
  id.crc(data_crc);
  const std::string id_text = id.text();

  write_zip_descriptor(plan.data, data_crc, out);
  write_small_member(plan.version.header_offset, kItemVersionName, kVersion, out);
  write_small_member(plan.id.header_offset, kItemIdName, id_text, out);
  for (size_t i = 0; i < front_crcs.size(); ++i) write_zip_central(plan.front[i], kFrontNames[i], front_crcs[i], out);
  write_zip_central(plan.data, kDataName, data_crc, out);
  write_zip_central(plan.version, kItemVersionName, kVersionCrc, out);
  write_zip_central(plan.id, kItemIdName, crc32(byte_view(id_text)), out);
  write_zip_end(plan.directory, plan.end - kZipEndSize - plan.directory, 7, out);
}

}  // namespace fsdpctl
