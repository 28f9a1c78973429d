// Checkpoints made by hand over files of their own, without any format: tensors with random content, cut and laid out
// as the test wants. Keeps what each tensor must read as.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {

using Random = std::mt19937_64;

enum class Cut { whole, rows, columns, dim, grid, flat };        // into pieces
enum class Order { row_major, transposed, padded, expanded };    // of a piece's elements on disk

struct WrittenTensor {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  Cut cut = Cut::whole;
  int parts = 1;               // ranks that hold a part; some parts may be empty
  int dim = 0;                 // for Cut::dim
  Order order = Order::row_major;
  bool swap = false, conj = false, neg = false;
  bool crc32 = false;
  int replicas = 1;            // further ones hold other bytes, so that reading one is seen
};

class WrittenCheckpoint {
 public:
  explicit WrittenCheckpoint(uint64_t seed, int files = 3, TempDir::Place place = TempDir::Place::disk);

  TensorIndex add(const WrittenTensor& wanted);
  void write();                                  // files, source and catalog are complete after this

  Checkpoint checkpoint;
  std::vector<std::string> content;              // of each tensor: logical row-major bytes in the stored dtype
  std::vector<std::string> files;                // bytes, as written
  Random random;

  // The same by the slowest way: element after element.
  std::string region_bytes(TensorIndex t, const Box& region) const;
  Box random_region(TensorIndex t);              // dims in the checkpoint's arena; may be the whole, never empty
  std::string directory() const { return directory_.path(); }

 private:
  void add_piece(TensorIndex t, const WrittenTensor& wanted, const Box& box, int rank, bool damaged);
  TempDir directory_;
};

WrittenTensor random_tensor(Random& random);
std::string file_name(size_t file);

inline std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace fsdpctl
