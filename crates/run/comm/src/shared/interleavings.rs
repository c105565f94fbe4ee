//! Flags under a scheduler that tries interleavings.
