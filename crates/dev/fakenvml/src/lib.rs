//! A `libnvidia-ml.so.1` that is scripted by a file.
