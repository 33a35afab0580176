#include "kernels/common.h"
