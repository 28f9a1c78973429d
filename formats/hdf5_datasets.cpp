// read_hdf5_datasets of hdf5_scan.h: the values of datasets that only the library can give.
#include <hdf5.h>

#include <algorithm>

#include "formats/hdf5_child.h"
#include "formats/hdf5_records.h"
#include "formats/hdf5_scan.h"
#include "formats/isolated.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kBlock = 16ull << 20;   // bytes read from the library at once

// Reads one dataset block by block and writes its rows where they belong.
class DatasetReader {
 public:
  DatasetReader(hid_t file, const Hdf5Read& read, FileHandle& spool) : read_(read), spool_(spool) {
    dataset_ = Hdf5Id(H5Dopen2(file, read.path.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset_) throw hdf5_damage("opening a dataset", read.path);
    type_ = Hdf5Id(H5Dget_type(dataset_.get()), H5Tclose);
    space_ = Hdf5Id(H5Dget_space(dataset_.get()), H5Sclose);
    item_ = H5Tget_size(type_.get());
    dims_.resize(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space_.get()))));
    H5Sget_simple_extent_dims(space_.get(), dims_.data(), nullptr);
    uint64_t bytes = item_;
    for (const hsize_t d : dims_) bytes *= d;
    if (bytes != read.length) throw hdf5_damage("finding the dataset unchanged", read.path);
  }

  void run() {
    if (dims_.empty()) return read_whole();
    const std::vector<hsize_t> block = block_dims();
    std::vector<hsize_t> at(dims_.size(), 0), size(dims_.size());
    while (true) {
      for (size_t d = 0; d < dims_.size(); ++d) size[d] = std::min(block[d], dims_[d] - at[d]);
      read_block(at, size);
      size_t d = dims_.size();
      while (d > 0 && (at[d - 1] += block[d - 1]) >= dims_[d - 1]) at[--d] = 0;
      if (d == 0) return;
    }
  }

 private:
  void read_whole() {
    buffer_.resize(item_);
    if (H5Dread(dataset_.get(), type_.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer_.data()) < 0) throw hdf5_damage("reading a dataset", read_.path);
    spool_.write(read_.spool_offset, buffer_);
  }

  // Whole chunks, as many as fit the block size: first along the last dimension, where rows grow.
  std::vector<hsize_t> block_dims() const {
    std::vector<hsize_t> block = dims_;
    const Hdf5Id plan(H5Dget_create_plist(dataset_.get()), H5Pclose);
    if (H5Pget_layout(plan.get()) == H5D_CHUNKED) {
      H5Pget_chunk(plan.get(), static_cast<int>(block.size()), block.data());
      for (size_t d = 0; d < block.size(); ++d) block[d] = std::clamp<hsize_t>(block[d], 1, dims_[d]);
    } else {
      std::fill(block.begin(), block.end(), 1);
    }
    uint64_t bytes = item_;
    for (const hsize_t d : block) bytes *= d;
    for (size_t d = block.size(); d-- > 0 && bytes < kBlock;) {
      const hsize_t more = std::min((dims_[d] + block[d] - 1) / block[d], std::max<hsize_t>(1, kBlock / bytes));
      const hsize_t grown = std::min(dims_[d], block[d] * more);
      bytes = bytes / block[d] * grown;
      block[d] = grown;
      if (grown < dims_[d]) break;
    }
    return block;
  }

  void read_block(const std::vector<hsize_t>& at, const std::vector<hsize_t>& size) {
    uint64_t bytes = item_;
    for (const hsize_t d : size) bytes *= d;
    buffer_.resize(bytes);
    const Hdf5Id memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
    if (H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, at.data(), nullptr, size.data(), nullptr) < 0 ||
        H5Dread(dataset_.get(), type_.get(), memory.get(), space_.get(), H5P_DEFAULT, buffer_.data()) < 0) {
      throw hdf5_damage("reading a dataset", read_.path);
    }
    write_rows(at, size);
  }

  // Runs of the block that are contiguous in the dataset.
  void write_rows(const std::vector<hsize_t>& at, const std::vector<hsize_t>& size) {
    size_t inner = size.size() - 1;      // first dimension of a run
    uint64_t run = item_ * size[inner];
    while (inner > 0 && size[inner] == dims_[inner]) run *= size[--inner];
    std::vector<hsize_t> index(size.size(), 0);
    for (uint64_t done = 0; done < buffer_.size(); done += run) {
      uint64_t element = 0;
      for (size_t d = 0; d < size.size(); ++d) element = element * dims_[d] + at[d] + index[d];
      spool_.write(read_.spool_offset + element * item_, std::span(buffer_).subspan(done, run));
      for (size_t d = inner; d-- > 0;) {
        if (++index[d] < size[d]) break;
        index[d] = 0;
      }
    }
  }

  const Hdf5Read& read_;
  FileHandle& spool_;
  Hdf5Id dataset_, type_, space_;
  uint64_t item_ = 0;
  std::vector<hsize_t> dims_;
  std::vector<std::byte> buffer_;
};

// One child's work: from the first dataset on until the last, or until one makes the library crash.
void read_from(const std::string& path, FileHandle& spool, std::span<Hdf5Read> reads, const Send& send) {
  const Hdf5Id file = open_hdf5(path);
  RecordWriter record;
  for (const Hdf5Read& read : reads) {
    std::string code, what, found;
    try {
      DatasetReader(file.get(), read, spool).run();
    } catch (const Error& e) {
      code = std::to_string(static_cast<int>(e.code()));
      what = e.finding().what;
      found = e.finding().found;
    }
    record.text(code);
    record.text(what);
    record.text(found);
    send(record.take());
  }
}

}  // namespace

void read_hdf5_datasets(const std::string& path, const std::string& file_name, FileHandle& spool, std::span<Hdf5Read> reads) {
  size_t done = 0;
  while (done < reads.size()) {
    RecordStream stream;
    auto take = [&](RecordReader record) {
      if (done == reads.size()) throw Error(Exit::damaged, "HDF5 library gave senseless answers");
      const std::string code = record.text(), what = record.text(), found = record.text();
      if (!code.empty()) {
        reads[done].failure.push_back(error(code == "6" ? Exit::failed : Exit::damaged, what).at(file_name).found_only(found));
      }
      ++done;
    };
    try {
      const std::span<Hdf5Read> left = reads.subspan(done);
      run_isolated(file_name, [&](const Send& send) { read_from(path, spool, left, send); },
                   [&](std::string_view bytes) { stream.add(bytes, take); });
    } catch (const Error& e) {
      if (done < reads.size()) reads[done++].failure.push_back(e.finding());   // the next child goes on after it
    }
  }
}

}  // namespace fsdpctl
