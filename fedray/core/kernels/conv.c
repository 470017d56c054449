/* Networks of convolutions, and linear layers behind them. */
#define FEATURES
#define KERNEL_SIZES conv_sizes
#define KERNEL_TRAIN conv_train
#include "lane.h"
