#include "formats/hdf5_scan.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "formats/hdf5_child.h"
#include "formats/hdf5_content.h"
#include "formats/hdf5_names.h"
#include "formats/hdf5_records.h"
#include "formats/hdf5_types.h"
#include "formats/isolated.h"
#include "lib/base/box.h"

namespace fsdpctl {
namespace {

constexpr int kMaxDepth = 100;                       // groups in groups
constexpr size_t kMaxAttribute = 64 * 1024;          // bytes of one that is read
constexpr uint64_t kMaxText = 512ull << 20;          // bytes of a string dataset
constexpr uint64_t kMaxTexts = 1'000'000;
// Deflate makes at most 1,032 bytes of one; unwritten parts read as the fill value. More than this is no tensor that anyone saved.
constexpr uint64_t kMaxExpansion = 1100, kFreeExpansion = 64ull << 20;

enum class Record : uint64_t { object, attribute, remark };

struct Link {
  std::string name;
  H5L_type_t type;
};

// Called by the library: must not throw.
herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* links) noexcept {
  try {
    static_cast<std::vector<Link>*>(links)->push_back({name, info->type});
    return 0;
  } catch (...) {
    return -1;
  }
}

// In the order in which they were made, where the group remembers it; else by name.
std::vector<Link> links_of(hid_t group, const std::string& path) {
  const Hdf5Id plan(H5Gget_create_plist(group), H5Pclose);
  unsigned order = 0;
  const bool tracked = H5Pget_link_creation_order(plan.get(), &order) >= 0 && (order & H5P_CRT_ORDER_TRACKED) != 0;
  std::vector<Link> links;
  if (H5Literate(group, tracked ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &links) < 0) {
    throw hdf5_damage("listing a group", path);
  }
  return links;
}

// A text attribute; nullopt where there is none that can be read.
std::optional<std::string> text_attribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return std::nullopt;
  const Hdf5Id attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Id type(H5Aget_type(attribute.get()), H5Tclose), space(H5Aget_space(attribute.get()), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1) return std::nullopt;
  if (H5Tis_variable_str(type.get()) > 0) {
    char* text = nullptr;
    if (H5Aread(attribute.get(), type.get(), &text) < 0 || text == nullptr) return std::nullopt;
    std::string copy(text, ::strnlen(text, kMaxAttribute));
    H5free_memory(text);
    return copy;
  }
  const size_t size = H5Tget_size(type.get());
  if (size > kMaxAttribute) return std::nullopt;
  std::string text(size, '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0) return std::nullopt;
  // Own names are padded with zeros and may hold some; others' end at the first.
  if (H5Tget_strpad(type.get()) == H5T_STR_NULLTERM) text.resize(::strnlen(text.data(), size));
  if (text == std::string_view("\0", 1)) text.clear();   // no string of HDF5 has no bytes
  return text;
}

class Scanner {
 public:
  Scanner(hid_t file, const Send& send) : file_(file), send_(send) {}

  void run() {
    const Hdf5Id root(H5Gopen2(file_, "/", H5P_DEFAULT), H5Gclose);
    if (!root) throw hdf5_damage("opening the root group", "");
    root_attributes(root.get());
    visited_.insert(info_of(root.get(), "").addr);
    group(root.get(), "", {}, 0);
    if (attributes_ > 0) remark("HDF5 attributes are not read", first_attribute_, fmt::format("{} attributes", attributes_));
  }

 private:
  using Names = std::vector<std::string>;

  void group(hid_t id, const std::string& path, const Names& names, int depth) {
    if (depth > kMaxDepth) throw Error(Exit::unsupported, "HDF5 groups nest too deep").key(path);
    const std::vector<Link> links = links_of(id, path);
    if (links.empty() && depth > 0) {
      Hdf5Object empty;
      empty.content = Hdf5Object::Content::empty_group;
      emit(empty, path, names, 0);
    }
    for (const Link& link : links) {
      const std::string below = path.empty() ? link.name : path + "/" + link.name;
      if (link.type == H5L_TYPE_HARD) object(id, link.name, below, names, depth);
      else remark(link.type == H5L_TYPE_SOFT ? "soft link is not followed" : "link to another file is not followed", below, "");
    }
  }

  void object(hid_t parent, const std::string& name, const std::string& path, const Names& names, int depth) {
    const Hdf5Id id(H5Oopen(parent, name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!id) throw hdf5_damage("opening an object", path);
    const H5O_info_t info = info_of(id.get(), path);
    Names below = names;
    below.push_back(original_name(id.get(), info, name));
    const hsize_t known_attributes = below.back() != name || has_name_of_another_link(id.get(), info) ? 1 : 0;
    if (info.type == H5O_TYPE_GROUP) {
      count_attributes(id.get(), info, path, known_attributes);
      if (visited_.insert(info.addr).second) group(id.get(), path, below, depth + 1);
      else remark("group has a second name that is not read", path, "");
    } else if (info.type == H5O_TYPE_DATASET) {
      dataset(id.get(), info, path, below, known_attributes);
    } else {
      remark("named datatype is not read", path, "");
    }
  }

  // What an escaped link stands for; others' attributes of that name mean something else.
  static std::string original_name(hid_t id, const H5O_info_t& info, const std::string& link) {
    if (info.num_attrs == 0 || link.find('%') == std::string::npos || H5Aexists(id, kOriginalName) <= 0) return link;
    const std::string original = text_attribute(id, kOriginalName).value_or("");
    if (link == hdf5_link_name("")) return {};
    return hdf5_link_name(original) == link ? original : link;
  }

  // Of a dataset with several links, the attribute may tell what one of the others stands for.
  static bool has_name_of_another_link(hid_t id, const H5O_info_t& info) {
    if (info.rc < 2 || info.num_attrs == 0 || H5Aexists(id, kOriginalName) <= 0) return false;
    const std::string original = text_attribute(id, kOriginalName).value_or("");
    return hdf5_link_name(original) != original;
  }

  void dataset(hid_t id, const H5O_info_t& info, const std::string& path, const Names& names, hsize_t known_attributes) {
    Hdf5Object object;
    const Hdf5Id type(H5Dget_type(id), H5Tclose), space(H5Dget_space(id), H5Sclose);
    Hdf5Element element = hdf5_element(type.get());
    if (info.num_attrs > 0) {
      const std::string dtype = text_attribute(id, kTorchDtype).value_or("");
      if (!dtype.empty() && apply_torch_dtype(dtype, element)) ++known_attributes;
    }
    count_attributes(id, info, path, known_attributes);
    object.shape = shape_of(space.get(), path);
    if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
      object.content = Hdf5Object::Content::nothing;
    } else if (element.kind == Hdf5Element::Kind::string) {
      read_texts(id, type.get(), element.variable, path, object);
    } else if (element.kind == Hdf5Element::Kind::number) {
      object.content = Hdf5Object::Content::tensor;
      object.dtype = element.dtype;
      object.swap = element.swap;
      place(id, path, object);
    } else {
      object.texts = {element.text};
    }
    emit(object, path, names, info.addr);
  }

  static std::vector<int64_t> shape_of(hid_t space, const std::string& path) {
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank < 0 || rank > H5S_MAX_RANK) throw hdf5_damage("reading a dataspace", path);
    std::vector<hsize_t> dims(static_cast<size_t>(rank));
    if (H5Sget_simple_extent_dims(space, dims.data(), nullptr) < 0) throw hdf5_damage("reading a dataspace", path);
    std::vector<int64_t> shape;
    for (const hsize_t d : dims) shape.push_back(d > INT64_MAX ? -1 : static_cast<int64_t>(d));
    return shape;
  }

  // Where a tensor's bytes are.
  static void place(hid_t id, const std::string& path, Hdf5Object& object) {
    const Hdf5Id plan(H5Dget_create_plist(id), H5Pclose);
    if (H5Pget_external_count(plan.get()) > 0) throw Error(Exit::unsupported, "HDF5 dataset has its data in other files").key(path);
    const H5D_layout_t layout = H5Pget_layout(plan.get());
    if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED && layout != H5D_COMPACT) {
      throw Error(Exit::unsupported, "HDF5 dataset is made of other datasets").key(path);
    }
    const auto elements = checked_count(object.shape);
    uint64_t bytes = 0;
    if (!elements || __builtin_mul_overflow(*elements, item_size(object.dtype), &bytes)) throw Error(Exit::damaged, "shape overflows").key(path);
    const haddr_t offset = layout == H5D_CONTIGUOUS && bytes > 0 ? H5Dget_offset(id) : HADDR_UNDEF;
    if (bytes == 0) return;
    if (offset != HADDR_UNDEF) {
      object.offset = offset;
      return;
    }
    object.storage = Hdf5Object::Storage::library;
    check_filters(plan.get(), path);
    const uint64_t stored = H5Dget_storage_size(id);
    if (bytes > kFreeExpansion && (bytes - kFreeExpansion) / kMaxExpansion > stored) {
      throw Error(Exit::unsupported, "HDF5 dataset is far larger than what is stored of it").key(path)
          .saw(fmt::format("{} bytes stored", stored), fmt::format("{} bytes claimed", bytes));
    }
  }

  static void check_filters(hid_t plan, const std::string& path) {
    const int count = H5Pget_nfilters(plan);
    for (int i = 0; i < count; ++i) {
      unsigned flags = 0, config = 0;
      size_t values = 0;
      std::array<char, 80> name{};
      const H5Z_filter_t filter = H5Pget_filter2(plan, static_cast<unsigned>(i), &flags, &values, nullptr, name.size() - 1, name.data(), &config);
      if (filter >= 0 && filter < H5Z_FILTER_RESERVED && H5Zfilter_avail(filter) > 0) continue;
      throw Error(Exit::unsupported, "HDF5 filter is not one of the library's own").key(path)
          .found_only(fmt::format("filter {} {}", filter, name.data()));
    }
  }

  static void read_texts(hid_t id, hid_t type, bool variable, const std::string& path, Hdf5Object& object) {
    const auto elements = checked_count(object.shape);
    const size_t size = H5Tget_size(type);
    if (object.shape.size() > 1) {
      object.texts = {"strings of several dimensions"};
      return;
    }
    if (!elements || *elements > kMaxTexts || (!variable && size > kMaxText / std::max<uint64_t>(*elements, 1))) {
      throw Error(Exit::unsupported, "HDF5 strings are too long").key(path);
    }
    object.content = object.shape.empty() ? Hdf5Object::Content::text : Hdf5Object::Content::texts;
    if (variable) {
      std::vector<char*> pointers(*elements, nullptr);
      if (H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()) < 0) throw hdf5_damage("reading strings", path);
      for (const char* text : pointers) object.texts.emplace_back(text == nullptr ? "" : text);   // the process ends soon: nothing to free
      return;
    }
    std::string bytes(*elements * size, '\0');
    if (H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0) throw hdf5_damage("reading strings", path);
    const bool spaces = H5Tget_strpad(type) == H5T_STR_SPACEPAD;
    for (size_t i = 0; i < *elements; ++i) {
      std::string text = bytes.substr(i * size, size);
      if (spaces) text.erase(text.find_last_not_of(' ') + 1);
      else text.resize(::strnlen(text.data(), size));
      object.texts.push_back(std::move(text));
    }
  }

  void emit(const Hdf5Object& object, const std::string& path, const Names& names, uint64_t address) {
    record_.number(static_cast<uint64_t>(Record::object));
    record_.text(path);
    record_.number(names.size());
    for (const std::string& name : names) record_.text(name);
    record_.number(address);
    record_.number(static_cast<uint64_t>(object.content));
    record_.number(static_cast<uint64_t>(object.dtype));
    record_.number(object.swap);
    record_.number(object.shape.size());
    for (const int64_t d : object.shape) record_.number(static_cast<uint64_t>(d));
    record_.number(static_cast<uint64_t>(object.storage));
    record_.number(object.offset);
    record_.number(object.texts.size());
    for (const std::string& text : object.texts) record_.text(text);
    send_(record_.take());
  }

  void remark(const std::string& what, const std::string& path, const std::string& found) {
    record_.number(static_cast<uint64_t>(Record::remark));
    record_.text(what);
    record_.text(path);
    record_.text(found);
    send_(record_.take());
  }

  static H5O_info_t info_of(hid_t id, const std::string& path) {
    H5O_info_t info = {};
    if (H5Oget_info2(id, &info, H5O_INFO_BASIC | H5O_INFO_NUM_ATTRS) < 0) throw hdf5_damage("examining an object", path);
    return info;
  }

  void root_attributes(hid_t root) {
    const hsize_t count = info_of(root, "").num_attrs;
    for (hsize_t i = kHdf5MaxAttributes; i < count; ++i) unread_attribute("/");
    for (hsize_t i = 0; i < std::min<hsize_t>(count, kHdf5MaxAttributes); ++i) {
      std::array<char, kHdf5MaxAttributeName> name{};
      if (H5Aget_name_by_idx(root, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT) < 0) continue;
      const auto text = text_attribute(root, name.data());
      if (!text) {
        unread_attribute(std::string("/") + name.data());
        continue;
      }
      record_.number(static_cast<uint64_t>(Record::attribute));
      record_.text(name.data());
      record_.text(*text);
      send_(record_.take());
    }
  }

  void count_attributes(hid_t id, const H5O_info_t& info, const std::string& path, hsize_t known) {
    if (info.num_attrs <= known) return;
    std::array<char, 256> name{};
    H5Aget_name_by_idx(id, ".", H5_INDEX_NAME, H5_ITER_INC, 0, name.data(), name.size(), H5P_DEFAULT);
    for (hsize_t i = known; i < info.num_attrs; ++i) unread_attribute(path + ": " + name.data());
  }

  void unread_attribute(const std::string& where) {
    if (attributes_++ == 0) first_attribute_ = where;
  }

  hid_t file_;
  const Send& send_;
  RecordWriter record_;
  std::set<haddr_t> visited_;     // groups
  uint64_t attributes_ = 0;       // that nobody reads
  std::string first_attribute_;
};

Hdf5Object object_of(RecordReader& record) {
  Hdf5Object object;
  object.path = record.text();
  for (uint64_t n = record.number(kMaxDepth + 2); n > 0; --n) object.names.push_back(record.text());
  object.address = record.number();
  object.content = static_cast<Hdf5Object::Content>(record.number(static_cast<uint64_t>(Hdf5Object::Content::unsupported) + 1));
  object.dtype = static_cast<DType>(record.number(kDTypeCount));
  object.swap = record.number(2) != 0;
  for (uint64_t n = record.number(H5S_MAX_RANK + 1); n > 0; --n) object.shape.push_back(static_cast<int64_t>(record.number()));
  object.storage = static_cast<Hdf5Object::Storage>(record.number(2));
  object.offset = record.number();
  for (uint64_t n = record.number(kMaxTexts + 1); n > 0; --n) object.texts.push_back(record.text());
  return object;
}

}  // namespace

Hdf5Scan scan_hdf5(const std::string& path, const std::string& file_name) {
  Hdf5Scan scan;
  RecordStream stream;
  auto take = [&](RecordReader record) {
    switch (static_cast<Record>(record.number(3))) {
      case Record::object: scan.objects.push_back(object_of(record)); break;
      case Record::attribute: {
        std::string name = record.text();
        scan.attributes.emplace_back(std::move(name), record.text());
        break;
      }
      case Record::remark: {
        Finding f = warning(record.text());
        f.at(file_name).key(record.text());
        scan.remarks.push_back(f.found_only(record.text()));
        break;
      }
    }
  };
  run_isolated(file_name, [&](const Send& send) { Scanner(open_hdf5(path).get(), send).run(); },
               [&](std::string_view bytes) { stream.add(bytes, take); });
  return scan;
}

}  // namespace fsdpctl
