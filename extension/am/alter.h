#pragma once

namespace pgwarp {

// Checks the options that ALTER INDEX gives to an ivfpq index.
void install_alter_hook();

}  // namespace pgwarp
