#pragma once

namespace pgwarp {

// Installs the hook that checks the options that ALTER INDEX sets on an ivfpq index.
void install_alter_hook();

}  // namespace pgwarp
