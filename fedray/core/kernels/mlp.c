/* Networks of linear layers. */
#define KERNEL_SIZES mlp_sizes
#define KERNEL_TRAIN mlp_train
#include "lane.h"
