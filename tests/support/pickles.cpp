#include "tests/support/pickles.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/zip.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(test_data(folder))) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<NamedPickle> protocol_pickles() {
  std::vector<NamedPickle> pickles;
  for (const fs::path& path : files_below("pickle")) {
    if (path.extension() == ".pkl") pickles.push_back({path.filename().string(), get_file(path)});
  }
  return pickles;
}

std::vector<NamedPickle> archive_pickles() {
  std::vector<NamedPickle> pickles;
  for (const fs::path& path : files_below("2.13.0")) {
    const std::string bytes = get_file(path);
    if (path.extension() != ".pt" || !bytes.starts_with("PK")) continue;
    const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset, out.size());
    };
    const std::string name = path.filename().string();
    const ZipMember* member = nullptr;
    const ZipArchive archive = read_zip(read, bytes.size(), name, 0);
    member = archive.find("data.pkl");
    pickles.push_back({name, read_zip_member(read, *member, 1 << 20, name, 0)});
  }
  return pickles;
}

std::vector<NamedPickle> metadata_pickles() {
  std::vector<NamedPickle> pickles;
  for (const fs::path& path : files_below("2.13.0")) {
    if (!path.filename().string().ends_with(".metadata")) continue;
    pickles.push_back({path.parent_path().parent_path().filename().string(), get_file(path)});
  }
  return pickles;
}

Value StorageIds::persistent(const Value& id) {
  ids_.push_back(id);
  return Value::storage(static_cast<TensorIndex>(ids_.size() - 1), "storage");
}

void StorageIds::storage(TensorIndex index, std::string_view, PickleWriter& out) {
  out.value(ids_[index]);
  out.op(pickle::kBinPersId);
}

Value read_pickle_of(const NamedPickle& pickle, StorageIds& ids) {
  FindingSink sink;
  return read_pickle(std::as_bytes(std::span(pickle.bytes)), ids, pickle.name, 0, sink).value;
}

std::string write_pickle(const Value& value, TensorEmitter& emitter) {
  std::string bytes;
  PickleWriter out(bytes, emitter);
  out.begin();
  out.value(value);
  out.end();
  return bytes;
}

}  // namespace fsdpctl
