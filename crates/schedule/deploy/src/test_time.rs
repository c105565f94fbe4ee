//! test_time
