#include "formats/all_formats.h"

namespace fsdpctl {

FormatList all_formats() {
  FormatList formats;
  return formats;
}

}  // namespace fsdpctl
