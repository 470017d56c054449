/* Networks of convolutions, and linear layers behind them. */
#define FEATURES
#define KERNEL_SIZES conv_sizes
#define KERNEL_TRAIN conv_train
#define KERNEL_OUTPUTS conv_outputs
#include "lane.h"
