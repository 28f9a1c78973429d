// The program's own operator new: big blocks get big pages. A page fault costs more than the page is worth to a command
// that lives for a tenth of a second: the catalog of 100,000 tensors took 28,000 of them.
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kBigPage = std::size_t{2} << 20;

void* allocate(std::size_t size) {
  if (size < kBigPage) return std::malloc(size > 0 ? size : 1);
  void* block = std::aligned_alloc(kBigPage, (size + kBigPage - 1) / kBigPage * kBigPage);
  if (block != nullptr) ::madvise(block, size, MADV_HUGEPAGE);  // only advice: kernels without them have none
  return block;
}

}  // namespace

void* operator new(std::size_t size) {
  for (;;) {
    if (void* block = allocate(size)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
