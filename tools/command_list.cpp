#include <algorithm>

#include "tools/command.h"

namespace fsdpctl {

// In the order of help.
const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands = {inspect_command(), verify_command(), diff_command(),  reshard_command(),
                                                convert_command(), save_command(), train_command(), generate_command()};
  return commands;
}

Exit worse(Exit a, Exit b) {
  return a == Exit::damaged || b == Exit::damaged ? Exit::damaged : std::max(a, b);
}

}  // namespace fsdpctl
