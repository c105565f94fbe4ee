//! Attention over blocks against attention over a plain sequence.
