#include "lib/ckpt/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kDirectoryName = "fsdpctl.manifest.json";
constexpr std::string_view kFileEnding = ".fsdpctl.json";
constexpr uint64_t kMaxText = 512u << 20;
// Metadata files up to this size are summed whole; of larger ones both ends and the size are.
constexpr uint64_t kMaxWhole = 64u << 20;
constexpr uint64_t kEnd = 1u << 20;

// Appends "text" as JSON. False, and nothing appended, where it is no UTF-8.
bool append_string(std::string& out, std::string_view text) {
  const auto plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), plain)) {
    out.append("\"").append(text).append("\"");
    return true;
  }
  try {
    out += nlohmann::json(std::string(text)).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// `"name": "text"`, or `"name_hex": "..."` for bytes that are no UTF-8 (names with surrogates).
void append_member(std::string& out, std::string_view name, std::string_view text) {
  const size_t begin = out.size();
  out.append("\"").append(name).append("\": ");
  if (append_string(out, text)) return;
  out.resize(begin);
  out.append("\"").append(name).append("_hex\": \"");
  for (const char c : text) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  out += '"';
}

void append_hex(std::string& out, std::string_view name, uint64_t value) {
  out.append("\"").append(name).append("\": \"").append(hex64(value)).append("\"");
}

std::string from_hex(const std::string& text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) throw Error(Exit::damaged, "manifest has a bad number").found_only(text);
    out += static_cast<char>(high * 16 + low);
  }
  return out;
}

uint64_t crc_from_hex(const std::string& text) {
  const std::string bytes = text.size() == 16 ? from_hex(text) : std::string();
  if (bytes.size() != 8) throw Error(Exit::damaged, "manifest has a bad checksum").saw("16 hexadecimal digits", text);
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

// Streams a manifest into rows. Members that it does not know are skipped, whatever they hold.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Manifest manifest;
  bool has_version = false, has_crc = false;
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (at_top("read_back")) manifest.read_back = value;
    return true;
  }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(value > INT64_MAX ? -1 : static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& text) override {
    if (open_ == "{") top_string(text);
    else if (open_ == "{{" && section_ == "source") source_string(text);
    else if (open_ == kRow && section_ == "tensors") tensor_string(manifest.tensors.back(), text);
    else if (open_ == kRow && section_ == "changes") change_string(manifest.changes.back(), text);
    return true;
  }
  bool key(string_t& text) override {
    (open_.size() == 1 ? section_ : key_) = text;
    return true;
  }
  bool start_object(std::size_t) override {
    open_ += '{';
    if (open_ == kRow && section_ == "tensors") manifest.tensors.emplace_back();
    if (open_ == kRow && section_ == "changes") manifest.changes.emplace_back();
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    open_ += '[';
    return true;
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    problem = fmt::format("no JSON at byte {}", at);
    return false;
  }

 private:
  bool close() {
    open_.pop_back();
    return true;
  }
  bool at_top(std::string_view name) const { return open_ == "{" && section_ == name; }

  bool number(int64_t value) {
    if (at_top("fsdpctl_manifest")) {
      manifest.version = value == 1 ? 1 : -1;
      has_version = true;
    } else if (open_ == "{[{[" && section_ == "tensors" && key_ == "shape") {
      manifest.tensors.back().shape.push_back(value);
    }
    return true;
  }

  void top_string(const std::string& text) {
    if (section_ == "format") manifest.format = text;
    else if (section_ == "metadata_file") manifest.metadata_file = text;
    else if (section_ == "metadata_crc64") manifest.metadata_crc64 = crc_from_hex(text), has_crc = true;
    else if (section_ == "fingerprint") manifest.fingerprint = crc_from_hex(text);
  }
  void source_string(const std::string& text) {
    if (key_ == "format") manifest.source_format = text;
    else if (key_ == "fingerprint") manifest.source_fingerprint = crc_from_hex(text);
  }
  void tensor_string(ManifestTensor& tensor, const std::string& text) const {
    if (key_ == "key") tensor.key = text;
    else if (key_ == "key_hex") tensor.key = from_hex(text);
    else if (key_ == "dtype") tensor.dtype = text;
    else if (key_ == "crc64") tensor.crc64 = crc_from_hex(text);
  }
  void change_string(Change& change, const std::string& text) const {
    if (key_ == "kind") change.kind = text;
    else if (key_ == "key") change.key = text;
    else if (key_ == "key_hex") change.key = from_hex(text);
    else if (key_ == "detail") change.detail = text;
    else if (key_ == "detail_hex") change.detail = from_hex(text);
  }

  static constexpr std::string_view kRow = "{[{";   // the document, a list, one row
  std::string open_;                                // brackets that are open
  std::string section_, key_;                       // members: of the document, of what is below it
};

// The file whose sum ties a manifest to the checkpoint.
std::string tied_file(const Checkpoint& checkpoint) {
  if (!checkpoint.metadata_file.empty()) return checkpoint.metadata_file;
  if (!checkpoint.data_files.empty()) return checkpoint.data_files.front();
  return base_name(checkpoint.source->path());
}

bool holds_data(const Checkpoint& checkpoint, SourceIndex file) {
  return std::any_of(checkpoint.pieces.begin(), checkpoint.pieces.end(), [&](const Piece& p) { return p.source == file; });
}

uint64_t catalog_sum(const Checkpoint& checkpoint, uint64_t size) {
  uint64_t raw = 0, bytes = 0;
  const auto add = [&](std::string_view line) {
    raw = crc64_raw(std::as_bytes(std::span(line)), raw);
    bytes += line.size();
  };
  for (const TensorInfo& info : checkpoint.tensors) {
    add(fmt::format("{}\t{}\t{}\n", info.key, dtype_name(info.dtype), dims_text(info.shape)));
  }
  add(fmt::format("{}\n", size));
  return crc64_finish(raw, bytes);
}

uint64_t metadata_sum(const Checkpoint& checkpoint) {
  Source& source = *checkpoint.source;
  const SourceIndex index = source.add(tied_file(checkpoint));
  const uint64_t size = source.file(index).size;
  if (holds_data(checkpoint, index)) return catalog_sum(checkpoint, size);
  if (size <= kMaxWhole) {
    uint64_t raw = 0;
    std::vector<std::byte> buffer(std::min(size, kEnd));
    for (uint64_t at = 0; at < size; at += buffer.size()) {
      const std::span<std::byte> part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), size - at));
      source.read(index, at, part);
      raw = crc64_shift(raw, part.size()) ^ crc64_raw(part);
    }
    return crc64_finish(raw, size);
  }
  std::vector<std::byte> ends(2 * kEnd + sizeof size);
  source.read(index, 0, std::span(ends).first(kEnd));
  source.read(index, size - kEnd, std::span(ends).subspan(kEnd, kEnd));
  for (size_t i = 0; i < sizeof size; ++i) ends[2 * kEnd + i] = static_cast<std::byte>(size >> (8 * i) & 0xff);
  return crc64(ends);
}

std::optional<std::string> read_manifest_text(const Checkpoint& checkpoint, std::string& name) {
  Source& source = *checkpoint.source;
  if (source.is_directory()) {
    name = kDirectoryName;
    if (!source.has(name)) return std::nullopt;
    return source.read_all(source.add(name), kMaxText);
  }
  const std::string path = manifest_path(source.path(), false);
  name = base_name(path);
  if (stat_path(path).kind != FileKind::file) return std::nullopt;
  return read_text(path, kMaxText);
}

}  // namespace

Manifest describe(const Checkpoint& checkpoint, const std::vector<TensorSum>& sums) {
  Manifest manifest;
  manifest.format = checkpoint.format;
  if (checkpoint.source->is_directory()) manifest.metadata_file = tied_file(checkpoint);
  manifest.metadata_crc64 = metadata_sum(checkpoint);
  manifest.fingerprint = checkpoint_fingerprint(checkpoint, sums);
  manifest.tensors.reserve(checkpoint.tensors.size());
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    const TensorInfo& info = checkpoint.tensors[t];
    manifest.tensors.push_back({std::string(info.key), std::string(dtype_name(info.dtype)), {info.shape.begin(), info.shape.end()}, sums[t].crc64});
  }
  return manifest;
}

std::string manifest_text(const Manifest& m) {
  std::string out;
  out.reserve(4096 + 128 * m.tensors.size());
  out += fmt::format("{{\n\"fsdpctl_manifest\": {},\n", m.version);
  append_member(out, "format", m.format);
  out += ",\n";
  if (!m.metadata_file.empty()) {
    append_member(out, "metadata_file", m.metadata_file);
    out += ",\n";
  }
  append_hex(out, "metadata_crc64", m.metadata_crc64);
  out += ",\n";
  append_hex(out, "fingerprint", m.fingerprint);
  out += ",\n";
  if (!m.source_format.empty()) {
    out += "\"source\": {";
    append_member(out, "format", m.source_format);
    out += ", ";
    append_hex(out, "fingerprint", m.source_fingerprint);
    out += "},\n";
  }
  out += fmt::format("\"read_back\": {},\n\"changes\": [", m.read_back);
  for (size_t i = 0; i < m.changes.size(); ++i) {
    out += i == 0 ? "\n{" : ",\n{";
    append_member(out, "kind", m.changes[i].kind);
    out += ", ";
    append_member(out, "key", m.changes[i].key);
    out += ", ";
    append_member(out, "detail", m.changes[i].detail);
    out += "}";
  }
  out += "\n],\n\"tensors\": [";
  for (size_t i = 0; i < m.tensors.size(); ++i) {
    out += i == 0 ? "\n{" : ",\n{";
    append_member(out, "key", m.tensors[i].key);
    out += ", ";
    append_member(out, "dtype", m.tensors[i].dtype);
    out.append(", \"shape\": ").append(dims_text(m.tensors[i].shape)).append(", ");
    append_hex(out, "crc64", m.tensors[i].crc64);
    out += "}";
  }
  out += "\n]\n}\n";
  return out;
}

Manifest parse_manifest(std::string_view text, const std::string& file_name) {
  Reader reader;
  try {
    const bool read = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
    if (!read || !reader.has_version || !reader.has_crc) {
      throw Error(Exit::damaged, "manifest cannot be read").found_only(read ? "no version or no checksum" : reader.problem);
    }
  } catch (Error& e) {
    throw e.in_file(file_name);
  }
  if (reader.manifest.version != 1) {
    throw Error(Exit::unsupported, "manifest of an unknown version").at(file_name).saw("1", "another number");
  }
  return std::move(reader.manifest);
}

std::optional<Manifest> find_manifest(const Checkpoint& checkpoint, FindingSink& sink, Severity unreadable) {
  std::string name;
  try {
    const std::optional<std::string> text = read_manifest_text(checkpoint, name);
    if (!text) return std::nullopt;
    Manifest manifest = parse_manifest(*text, name);
    const uint64_t sum = metadata_sum(checkpoint);
    if (sum == manifest.metadata_crc64) return manifest;
    sink.report(warning("manifest belongs to another save and is ignored")
                    .at(name)
                    .saw("crc64 " + hex64(manifest.metadata_crc64) + " of " + tied_file(checkpoint), "crc64 " + hex64(sum))
                    .try_("if it was saved again on purpose, --write-manifest --force seals it; else it is damaged"));
  } catch (const Error& e) {
    if (e.code() == Exit::interrupted) throw;
    Finding finding = error(e.code(), "manifest cannot be read and is ignored");
    finding.severity = unreadable;
    sink.report(finding.at(name).found_only(e.what()));
  }
  return std::nullopt;
}

bool is_manifest(const std::string& path) {
  constexpr std::string_view start = "{\n\"fsdpctl_manifest\":";
  if (stat_path(path).kind != FileKind::file) return false;
  const FileHandle file = FileHandle::open_read(path);
  std::string head(start.size(), '\0');
  head.resize(file.read_some(0, std::as_writable_bytes(std::span(head))));
  return head == start;
}

bool has_manifest_file(const Checkpoint& checkpoint) {
  const FileStat there = stat_path(manifest_path(checkpoint.source->path(), checkpoint.source->is_directory()));
  return there.kind != FileKind::absent || there.is_link;
}

bool is_untouched(const Checkpoint& checkpoint) {
  const Source& source = *checkpoint.source;
  const FileStat manifest = stat_path(manifest_path(source.path(), source.is_directory()));
  if (manifest.kind != FileKind::file) return false;
  const auto is_older = [&](const std::string& name) {
    const FileStat file = stat_path(source.is_directory() ? join_path(source.path(), name) : source.path());
    return file.kind == FileKind::file && file.mtime_ns <= manifest.mtime_ns;
  };
  return is_older(tied_file(checkpoint)) && std::all_of(checkpoint.data_files.begin(), checkpoint.data_files.end(), is_older);
}

std::string manifest_path(const std::string& output, bool directory) {
  return directory ? join_path(output, kDirectoryName) : output + std::string(kFileEnding);
}

}  // namespace fsdpctl
