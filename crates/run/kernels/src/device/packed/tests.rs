//! Packed products against plain ones.
