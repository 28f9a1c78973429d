#include <cstdio>

#include "formats/all_formats.h"

int main(int, char** arguments) {
  fsdpctl::FindingSink sink;
  const fsdpctl::FormatList formats = fsdpctl::all_formats();
  const fsdpctl::Opened opened = fsdpctl::open_checkpoint(formats, arguments[1], sink);
  std::printf("%s, %zu tensors\n", opened.checkpoint.format.c_str(), opened.checkpoint.tensors.size());
}
