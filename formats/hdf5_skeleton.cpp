#include "formats/hdf5_skeleton.h"

#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "formats/hdf5_types.h"
#include "lib/base/temporary.h"

namespace fsdpctl {
namespace {

constexpr hsize_t kAlignment = 64;            // of datasets, from this size on
constexpr hsize_t kMetadataBlock = 256 * 1024;

[[noreturn]] void fail(std::string_view doing, std::string_view path) {
  throw Error(Exit::failed, "HDF5 library cannot write").key(std::string(path)).found_only(std::string(doing));
}

template <class Id>
Id checked(Id id, std::string_view doing, std::string_view path) {
  if (id < 0) fail(doing, path);
  return id;
}

// A file that loses its name as soon as the library, which wants one, has opened it.
class NamedForAMoment {
 public:
  NamedForAMoment() {
    static std::atomic<uint64_t> count = 0;
    path_ = join_path(temporary_directory(), fmt::format("fsdpctl-{}-{}.h5", ::getpid(), ++count));
    file_ = FileHandle::create(path_);
  }
  ~NamedForAMoment() { remove(); }
  const std::string& path() const { return path_; }
  FileHandle take() {
    remove();
    return std::move(file_);
  }

 private:
  void remove() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }
  std::string path_;
  FileHandle file_;
};

class SkeletonWriter {
 public:
  explicit SkeletonWriter(const std::string& path);
  void root_attribute(const std::string& name, std::string_view text) { attribute(file_.get(), name.c_str(), text); }
  void text(const Hdf5Text& text);
  void tensor(const Checkpoint& checkpoint, const Hdf5Tensor& tensor, std::vector<Hdf5Extent>& extents);
  void close();

 private:
  hid_t group_of(const Hdf5Path& path);
  void attribute(hid_t object, const char* name, std::string_view text);
  void original_name(hid_t object, const std::string& name);
  Hdf5Id string_type(size_t size);

  Hdf5Id file_, scalar_, dataset_plan_, group_plan_;
  std::map<std::string, Hdf5Id> groups_;     // by link path
  std::map<DType, Hdf5Id> types_;
};

SkeletonWriter::SkeletonWriter(const std::string& path) {
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose), creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  group_plan_ = Hdf5Id(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  dataset_plan_ = Hdf5Id(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  // The format of HDF5 1.8: every library since then reads it, and big groups are quick in it.
  bool ready = H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
               H5Pset_alignment(access.get(), kAlignment, kAlignment) >= 0 && H5Pset_meta_block_size(access.get(), kMetadataBlock) >= 0;
  for (const hid_t group : {creation.get(), group_plan_.get()}) {   // the root group is planned with the file
    ready = ready && H5Pset_link_creation_order(group, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED) >= 0;
  }
  for (const hid_t object : {creation.get(), group_plan_.get(), dataset_plan_.get()}) ready = ready && H5Pset_obj_track_times(object, false) >= 0;
  ready = ready && H5Pset_layout(dataset_plan_.get(), H5D_CONTIGUOUS) >= 0 && H5Pset_alloc_time(dataset_plan_.get(), H5D_ALLOC_TIME_EARLY) >= 0 &&
          H5Pset_fill_time(dataset_plan_.get(), H5D_FILL_TIME_NEVER) >= 0;
  if (!ready) fail("setting properties", "");
  scalar_ = Hdf5Id(H5Screate(H5S_SCALAR), H5Sclose);
  file_ = Hdf5Id(checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), "creating the temporary file", path), H5Fclose);
}

hid_t SkeletonWriter::group_of(const Hdf5Path& path) {
  hid_t parent = file_.get();
  Hdf5Path walked;
  for (size_t i = 0; i + 1 < path.elements.size(); ++i) {
    walked.elements.push_back(path.elements[i]);
    const std::string link = hdf5_link_path(walked);
    auto known = groups_.find(link);
    if (known == groups_.end()) {
      const hid_t made = H5Gcreate2(parent, hdf5_link_name(path.elements[i]).c_str(), H5P_DEFAULT, group_plan_.get(), H5P_DEFAULT);
      known = groups_.emplace(link, Hdf5Id(checked(made, "creating a group", link), H5Gclose)).first;
      original_name(made, path.elements[i]);
    }
    parent = known->second.get();
  }
  return parent;
}

Hdf5Id SkeletonWriter::string_type(size_t size) {
  Hdf5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  if (H5Tset_size(type.get(), std::max<size_t>(size, 1)) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0 || H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0) {
    fail("making a string type", "");
  }
  return type;
}

void SkeletonWriter::attribute(hid_t object, const char* name, std::string_view text) {
  const Hdf5Id type = string_type(text.size());
  const std::string bytes = text.empty() ? std::string(1, '\0') : std::string(text);
  const Hdf5Id made(checked(H5Acreate2(object, name, type.get(), scalar_.get(), H5P_DEFAULT, H5P_DEFAULT), "creating an attribute", text), H5Aclose);
  checked(H5Awrite(made.get(), type.get(), bytes.data()), "writing an attribute", text);
}

void SkeletonWriter::original_name(hid_t object, const std::string& name) {
  if (hdf5_link_name(name) != name) attribute(object, kOriginalName, name);
}

void SkeletonWriter::text(const Hdf5Text& text) {
  const Hdf5Id type = string_type(text.text.size());
  const std::string& name = text.path.elements.back();
  const hid_t group = group_of(text.path);
  const Hdf5Id made(checked(H5Dcreate2(group, hdf5_link_name(name).c_str(), type.get(), scalar_.get(), H5P_DEFAULT, dataset_plan_.get(), H5P_DEFAULT),
                            "creating a dataset", name), H5Dclose);
  checked(H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.text.data()), "writing a dataset", name);
  original_name(made.get(), name);
}

void SkeletonWriter::tensor(const Checkpoint& checkpoint, const Hdf5Tensor& tensor, std::vector<Hdf5Extent>& extents) {
  const TensorInfo& info = checkpoint.tensors[tensor.tensor];
  auto type = types_.find(info.dtype);
  if (type == types_.end()) type = types_.emplace(info.dtype, hdf5_type(info.dtype)).first;
  const std::vector<hsize_t> dims(info.shape.begin(), info.shape.end());
  const Hdf5Id space(dims.empty() ? H5Scopy(scalar_.get()) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
  const Hdf5Path& path = tensor.paths.front();
  const std::string& name = path.elements.back();
  const Hdf5Id made(checked(H5Dcreate2(group_of(path), hdf5_link_name(name).c_str(), type->second.get(), space.get(), H5P_DEFAULT,
                                       dataset_plan_.get(), H5P_DEFAULT), "creating a dataset", info.key), H5Dclose);
  if (hdf5_needs_attribute(info.dtype)) attribute(made.get(), kTorchDtype, dtype_name(info.dtype));
  original_name(made.get(), name);
  for (size_t i = 1; i < tensor.paths.size(); ++i) {   // tied tensors: one dataset, several names
    const std::string link = hdf5_link_name(tensor.paths[i].elements.back());
    checked(H5Olink(made.get(), group_of(tensor.paths[i]), link.c_str(), H5P_DEFAULT, H5P_DEFAULT), "linking a dataset", link);
  }
  const uint64_t bytes = checkpoint.bytes_of(tensor.tensor);
  if (bytes == 0) return;
  const haddr_t offset = H5Dget_offset(made.get());
  if (offset == HADDR_UNDEF) fail("placing a dataset", info.key);
  extents.push_back({tensor.tensor, offset, bytes});
}

void SkeletonWriter::close() {
  groups_.clear();
  checked(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), "flushing", "");
  file_ = Hdf5Id();
}

}  // namespace

Hdf5Skeleton make_hdf5_skeleton(const Checkpoint& checkpoint, const Hdf5Content& content) {
  const std::lock_guard lock(hdf5_mutex());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);   // errors are ours to print
  Hdf5Skeleton skeleton;
  NamedForAMoment named;
  SkeletonWriter writer(named.path());
  skeleton.file = named.take();
  for (const Hdf5Tensor& tensor : content.tensors) writer.tensor(checkpoint, tensor, skeleton.extents);
  for (const Hdf5Text& text : content.texts) writer.text(text);
  for (const auto& [name, text] : content.attributes) writer.root_attribute(name, text);
  writer.close();
  skeleton.size = skeleton.file.size();
  std::sort(skeleton.extents.begin(), skeleton.extents.end(), [](const Hdf5Extent& a, const Hdf5Extent& b) { return a.offset < b.offset; });
  return skeleton;
}

}  // namespace fsdpctl
