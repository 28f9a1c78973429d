#include "formats/dcp_metadata_writer.h"

#include "formats/codec/little_endian.h"
#include "formats/codec/pickle_opcodes.h"

namespace fsdpctl {

using namespace pickle;

namespace {

// Memo numbers of what everybody uses. Below 256 a reference takes two bytes.
enum Memo : uint64_t {
  kTensorStorage, kBytesStorage, kChunk, kSize, kIndex, kInfo, kProperties, kLayout, kMemoryFormat,
  kPropertiesKey, kSizeKey, kChunksKey, kOffsetsKey, kSizesKey, kFqnKey, kIndexKey, kOffsetKey, kPathKey, kLengthKey,
  kFirstName,
};

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOldModule = "torch.distributed._shard.sharded_tensor.metadata";

}  // namespace

uint64_t DcpMetadataWriter::name_memo(uint64_t name) const { return kFirstName + name; }
uint64_t DcpMetadataWriter::file_memo(uint64_t file) const { return kFirstName + names_ + file; }

void DcpMetadataWriter::text(std::string_view utf8) {
  out_ += static_cast<char>(kBinUnicode);
  put_u32(out_, static_cast<uint32_t>(utf8.size()));
  out_ += utf8;
}

void DcpMetadataWriter::integer(uint64_t v) {
  if (v <= 0xFF) {
    out_ += static_cast<char>(kBinInt1);
    out_ += static_cast<char>(v);
  } else if (v <= 0xFFFF) {
    out_ += static_cast<char>(kBinInt2);
    put_u16(out_, static_cast<uint16_t>(v));
  } else if (v <= 0x7FFFFFFF) {
    out_ += static_cast<char>(kBinInt);
    put_u32(out_, static_cast<uint32_t>(v));
  } else {
    char bytes[8];
    char count = 0;
    for (; v > 0; v >>= 8) bytes[static_cast<size_t>(count++)] = static_cast<char>(v & 0xFF);
    if (bytes[count - 1] & '\x80') bytes[static_cast<size_t>(count++)] = 0;   // two's complement; 2^63 and more do not occur
    out_ += static_cast<char>(kLong1);
    out_ += count;
    out_.append(bytes, static_cast<size_t>(count));
  }
}

void DcpMetadataWriter::put(uint64_t memo) {
  if (memo <= 0xFF) {
    out_ += static_cast<char>(kBinPut);
    out_ += static_cast<char>(memo);
  } else {
    out_ += static_cast<char>(kLongBinPut);
    put_u32(out_, static_cast<uint32_t>(memo));
  }
}

void DcpMetadataWriter::get(uint64_t memo) {
  if (memo <= 0xFF) {
    out_ += static_cast<char>(kBinGet);
    out_ += static_cast<char>(memo);
  } else {
    out_ += static_cast<char>(kLongBinGet);
    put_u32(out_, static_cast<uint32_t>(memo));
  }
}

void DcpMetadataWriter::define(std::string_view utf8, uint64_t memo) {
  text(utf8);
  put(memo);
  out_ += static_cast<char>(kPop);
}

void DcpMetadataWriter::define_global(std::string_view module, std::string_view name, uint64_t memo) {
  out_ += static_cast<char>(kGlobal);
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
  put(memo);
  out_ += static_cast<char>(kPop);
}

// torch.Size(dims)
void DcpMetadataWriter::size(Dims dims) {
  get(kSize);
  if (dims.size() > 3) out_ += static_cast<char>(kMark);
  for (int64_t d : dims) integer(static_cast<uint64_t>(d));
  constexpr char kTuples[] = {static_cast<char>(kEmptyTuple), static_cast<char>(kTuple1), static_cast<char>(kTuple2), static_cast<char>(kTuple3)};
  out_ += dims.size() > 3 ? static_cast<char>(kTuple) : kTuples[dims.size()];
  out_ += static_cast<char>(kTuple1);
  out_ += static_cast<char>(kReduce);
}

void DcpMetadataWriter::begin() {
  out_ += "\x80\x02";
  define_global(kMetadataModule, "TensorStorageMetadata", kTensorStorage);
  define_global(kMetadataModule, "BytesStorageMetadata", kBytesStorage);
  define_global(kMetadataModule, "ChunkStorageMetadata", kChunk);
  define_global("torch", "Size", kSize);
  define_global(kMetadataModule, "MetadataIndex", kIndex);
  define_global("torch.distributed.checkpoint.filesystem", "_StorageInfo", kInfo);
  define_global(kOldModule, "TensorProperties", kProperties);
  out_ += "ctorch.serialization\n_get_layout\n";
  text("torch.strided");
  out_ += "\x85R";
  put(kLayout);
  out_ += '0';
  out_ += 'c';
  out_ += kOldModule;
  out_ += "\nMEM_FORMAT_ENCODING\nK";
  out_ += '\0';                        // contiguous
  out_ += "\x85R";
  put(kMemoryFormat);
  out_ += '0';
  constexpr std::string_view kKeys[] = {"properties", "size", "chunks", "offsets", "sizes", "fqn", "index", "offset", "relative_path", "length"};
  for (uint64_t k = 0; k < std::size(kKeys); ++k) define(kKeys[k], kPropertiesKey + k);
  out_ += 'c';
  out_ += kMetadataModule;
  out_ += "\nMetadata\n)\x81}(";
  text("state_dict_metadata");
  out_ += '}';
}

void DcpMetadataWriter::tensor(uint64_t name, std::string_view fqn, DType dtype, Dims shape) {
  text(fqn);
  put(name_memo(name));
  get(kTensorStorage);
  out_ += ")\x81}(";
  get(kPropertiesKey);
  get(kProperties);
  out_ += ")\x81(";
  out_ += "ctorch\n";
  out_ += dtype_name(dtype);
  out_ += '\n';
  get(kLayout);
  out_ += '\x89';                      // requires_grad
  get(kMemoryFormat);
  out_ += "\x89tb";                    // pin_memory
  get(kSizeKey);
  size(shape);
  get(kChunksKey);
  out_ += "](";
}

void DcpMetadataWriter::chunk(Dims offset, Dims extent) {
  get(kChunk);
  out_ += ")\x81}(";
  get(kOffsetsKey);
  size(offset);
  get(kSizesKey);
  size(extent);
  out_ += "ub";
}

void DcpMetadataWriter::end_tensor() { out_ += "eub"; }

void DcpMetadataWriter::bytes(uint64_t name, std::string_view fqn) {
  text(fqn);
  put(name_memo(name));
  get(kBytesStorage);
  out_ += ")\x81";
}

void DcpMetadataWriter::end_state_dict() {
  text("planner_data");
  out_ += '}';
}

void DcpMetadataWriter::path(uint64_t name, std::span<const DcpPathStep> path) {
  get(name_memo(name));
  out_ += '(';
  for (const DcpPathStep& step : path) {
    if (step.index < 0) text(step.text);
    else integer(static_cast<uint64_t>(step.index));
  }
  out_ += 't';
}

void DcpMetadataWriter::end_paths() {
  text("storage_data");
  out_ += '}';
}

void DcpMetadataWriter::file(uint64_t file, std::string_view file_name) { define(file_name, file_memo(file)); }

void DcpMetadataWriter::tensor_item(uint64_t name, uint64_t index, Dims box_offset) {
  get(kIndex);
  out_ += ")\x81}(";
  get(kFqnKey);
  get(name_memo(name));
  get(kIndexKey);
  integer(index);
  get(kOffsetKey);
  size(box_offset);
  out_ += "ub";
}

void DcpMetadataWriter::byte_item(uint64_t name) {
  get(kIndex);
  out_ += ")\x81}(";
  get(kFqnKey);
  get(name_memo(name));
  get(kIndexKey);
  out_ += "Nub";
}

void DcpMetadataWriter::place(uint64_t file, uint64_t offset, uint64_t length) {
  get(kInfo);
  out_ += ")\x81}(";
  get(kPathKey);
  get(file_memo(file));
  get(kOffsetKey);
  integer(offset);
  get(kLengthKey);
  integer(length);
  out_ += "ub";
}

void DcpMetadataWriter::end() { out_ += "ub."; }

}  // namespace fsdpctl
