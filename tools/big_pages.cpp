// The program's own operator new: big blocks, and the heap that small ones come from, get big pages. A page fault costs more
// than the page is worth to a command that lives for a tenth of a second: the catalog of 100,000 tensors took 28,000 of them.
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kBigPage = std::size_t{2} << 20;
// What malloc() cuts small blocks from takes this much address space at once and keeps it, so that one advice holds for all of
// it. Memory is taken as it is used.
constexpr std::size_t kHeap = 24 * kBigPage;

const bool heap_has_big_pages = [] {
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kBigPage));
  ::mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * kHeap));
  ::mallopt(M_TOP_PAD, static_cast<int>(kHeap));
  void* volatile grows = std::malloc(kHeap / 128);   // volatile: or the compiler leaves it out
  std::free(grows);
  ::mallopt(M_TOP_PAD, 128 << 10);
  const auto end = reinterpret_cast<std::uintptr_t>(::sbrk(0)) / kBigPage * kBigPage;
  return ::madvise(reinterpret_cast<void*>(end - kHeap + kBigPage), kHeap - kBigPage, MADV_HUGEPAGE) == 0;
}();

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
