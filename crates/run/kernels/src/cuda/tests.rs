//! Kernels without a GPU: every source is compiled for the chips it may run on.
